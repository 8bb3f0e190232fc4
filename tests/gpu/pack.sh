#!/usr/bin/env bash
# pack.sh LIMIT LEVEL OUT.tar.gz CHECK.sh SAME_ANSWER.sh PTX_VECTORS KERNEL_CASES KERNEL_CASES_COUNTED MODEL_FILE... --
# NAME=PROGRAM...: the bundle that check.sh runs from; an error if it has more than LIMIT bytes. LEVEL: xz's, 0 to 9. The three
# programs are the emulated ones; their results go in. With them all libraries of the programs but the driver's, and but
# NCCL's, which is larger than all the rest. In OUT lie check.sh, rest.tar.xz and an xz to unpack it with at the first run: a
# machine with tar and gzip need not have one.
set -euo pipefail

limit="$1" level="$2" out="$3" check="$4" same_answer="$5" ptx_vectors="$6" kernel_cases="$7" kernel_cases_counted="$8"
shift 8
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# libraries FOLDER: copies those whose paths come in; the loader and libc have a folder of their own: FOLDER/libc.
libraries() {
  local library
  while read -r library; do
    case "${library##*/}" in
      libcuda.so.* | libnccl.so.*) ;;
      ld-linux* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.*) cp -L "$library" "$1/libc/" ;;
      *) cp -L "$library" "$1/lib/" ;;
    esac
  done
}
needed() { ldd "$1" | awk '$2 == "=>" { print $3 } $1 ~ "^/" { print $1 }'; }

rest="$work/rest" first="$work/first/bundle"
mkdir -p "$rest"/{bin,lib,libc,model,start} "$first"/{lib,libc}
cp -L "$same_answer" "$rest/same_answer.sh"
"$ptx_vectors" write "$rest/ptx_emulated.bin"
"$kernel_cases" write "$rest/cases_emulated.bin" small calibration large
"$kernel_cases_counted" counters "$rest/counters_emulated.tsv" calibration
while [[ "$1" != -- ]]; do
  cp -L "$1" "$rest/model/"
  shift
done
shift
for pair in "$@"; do
  name="${pair%%=*}"
  cp -L "${pair#*=}" "$rest/bin/$name"
  chmod u+w "$rest/bin/$name"
  strip "$rest/bin/$name"
  # What `bitshard serve` starts finds its libraries whichever way it is started itself; BUNDLE_LOADER: also its libc.
  cat > "$rest/start/$name" << EOF_START
#!/bin/sh
here="\${0%/*}/.."
folders="\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
[ -z "\${BUNDLE_LOADER:-}" ] ||
  exec "\$here/libc/ld-linux-x86-64.so.2" --library-path "\$here/libc:\$folders" "\$here/bin/$name" "\$@"
LD_LIBRARY_PATH="\$folders" exec "\$here/bin/$name" "\$@"
EOF_START
  chmod +x "$rest/start/$name"
  needed "$rest/bin/$name"
done | sort -u | libraries "$rest"

# A quarter of the bundle would be ICU's data: locales, collation, names. Normal forms C and D and letter case, all that the
# model here can ask for, are in ICU's code. What stays is the head of the data, with a table of no entries.
for library in "$rest"/lib/libicudata.so.*; do
  [[ -e "$library" ]] || continue
  objcopy -O binary --only-section=.rodata "$library" "$work/icu"
  if [[ "$(tail -c +13 "$work/icu" | head -c 4)" != CmnD ]]; then
    echo "error: $library: its section .rodata does not begin with the data; tests/gpu/pack.sh has to look elsewhere" >&2
    exit 1
  fi
  bytes="$(stat -c %s "$work/icu")"
  truncate -s "$(od -An -tu2 -N2 "$work/icu" | tr -d ' ')" "$work/icu"
  truncate -s "$bytes" "$work/icu"
  objcopy --update-section .rodata="$work/icu" "$library"
done

# The programs hold the same kernels: a window that sees two of them.
archive() { tar --sort=name --owner=0 --group=0 --mtime=@0 --mode=u+w -c "$@"; }
cp -L "$check" "$first/check.sh"
cp -L "$(command -v xz)" "$first/libc/xz"
needed "$first/libc/xz" | libraries "$first"
mv "$first"/lib/* "$first/libc/"
rmdir "$first/lib"
for file in "$first"/libc/*; do rm -f "$rest/libc/${file##*/}"; done
archive -C "$rest" . | xz -T1 --lzma2="preset=$level,dict=128MiB" > "$first/rest.tar.xz"
archive -C "$work/first" bundle | gzip -n > "$out"

bytes="$(stat -c %s "$out")"
if ((bytes > limit)); then
  rm "$out"
  echo "error: the packed bundle has $bytes bytes and may have $limit (tests/gpu/BUILD.bazel). Its largest files, unpacked:" >&2
  (cd "$rest" && find . -type f -printf '%s %P\n' | sort -nr | head) >&2
  exit 1
fi
