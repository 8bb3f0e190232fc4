#!/usr/bin/env bash
# pack.sh OUT.tar.xz CHECK.sh EMULATED_PTX_VECTORS MODEL_FILE... -- NAME=PROGRAM...: the bundle that check.sh runs from, with
# all libraries of the programs but the driver's.
set -euo pipefail

out="$1" check="$2" emulated="$3"
shift 3
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
bundle="$work/bundle"
mkdir -p "$bundle"/{bin,lib,libc,model,start}
cp -L "$check" "$bundle/check.sh"
"$emulated" write "$bundle/ptx_emulated.bin"
while [[ "$1" != -- ]]; do
  cp -L "$1" "$bundle/model/"
  shift
done
shift
for pair in "$@"; do
  name="${pair%%=*}"
  cp -L "${pair#*=}" "$bundle/bin/$name"
  chmod u+w "$bundle/bin/$name"
  strip "$bundle/bin/$name"
  # What `bitshard serve` starts finds its libraries whichever way it is started itself.
  printf '#!/bin/sh\nLD_LIBRARY_PATH="${0%%/*}/../lib" exec "${0%%/*}/../bin/%s" "$@"\n' "$name" > "$bundle/start/$name"
  chmod +x "$bundle/start/$name"
  ldd "$bundle/bin/$name" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }'
done | sort -u > "$work/libraries"
while read -r library; do
  case "${library##*/}" in
    libcuda.so.*) ;;
    ld-linux* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.*) cp -L "$library" "$bundle/libc/" ;;
    *) cp -L "$library" "$bundle/lib/" ;;
  esac
done < "$work/libraries"
# Several programs hold the same kernels: a window that sees them all.
XZ_OPT=-9 tar -C "$work" -cJf "$out" --sort=name --owner=0 --group=0 --mtime=@0 bundle
