#!/usr/bin/env bash
# pack.sh OUT.tar.xz CHECK.sh SAME_ANSWER.sh PTX_VECTORS KERNEL_CASES KERNEL_CASES_COUNTED MODEL_FILE... -- NAME=PROGRAM...:
# the bundle that check.sh runs from. The three programs are the emulated ones; their results go in. With them all libraries
# of the programs but the driver's, and but NCCL's, which is larger than all the rest.
set -euo pipefail

out="$1" check="$2" same_answer="$3" ptx_vectors="$4" kernel_cases="$5" kernel_cases_counted="$6"
shift 6
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
bundle="$work/bundle"
mkdir -p "$bundle"/{bin,lib,libc,model,start}
cp -L "$check" "$bundle/check.sh"
cp -L "$same_answer" "$bundle/same_answer.sh"
"$ptx_vectors" write "$bundle/ptx_emulated.bin"
"$kernel_cases" write "$bundle/cases_emulated.bin" small calibration large
"$kernel_cases_counted" counters "$bundle/counters_emulated.tsv" calibration
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
  # What `bitshard serve` starts finds its libraries whichever way it is started itself; BUNDLE_LOADER: also its libc.
  cat > "$bundle/start/$name" << EOF
#!/bin/sh
here="\${0%/*}/.."
folders="\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
[ -z "\${BUNDLE_LOADER:-}" ] ||
  exec "\$here/libc/ld-linux-x86-64.so.2" --library-path "\$here/libc:\$folders" "\$here/bin/$name" "\$@"
LD_LIBRARY_PATH="\$folders" exec "\$here/bin/$name" "\$@"
EOF
  chmod +x "$bundle/start/$name"
  ldd "$bundle/bin/$name" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }'
done | sort -u > "$work/libraries"
while read -r library; do
  case "${library##*/}" in
    libcuda.so.* | libnccl.so.*) ;;
    ld-linux* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.*) cp -L "$library" "$bundle/libc/" ;;
    *) cp -L "$library" "$bundle/lib/" ;;
  esac
done < "$work/libraries"
# Several programs hold the same kernels: a window that sees them all.
XZ_OPT=--lzma2=preset=9,dict=384MiB tar -C "$work" -cJf "$out" --sort=name --owner=0 --group=0 --mtime=@0 bundle
