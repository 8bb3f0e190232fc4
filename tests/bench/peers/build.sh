# Builds what against_llama_cpp.sh and under_load.sh compare with, into one folder, which is kept; sourced by them. Every
# function is quick when there is nothing to do. About ten minutes on two cores the first time.
# shellcheck shell=bash

PEERS_SOURCE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

LLAMA_CPP_PYTHON_VERSION="${LLAMA_CPP_PYTHON_VERSION:-0.3.36}"

# build_llama_cpp FOLDER: llama.cpp out of the source distribution of llama-cpp-python (its copy is complete), its tools,
# and our driver llama_bench.
build_llama_cpp() {
  local folder="$1" source="$1/llamapy/vendor/llama.cpp" version="$LLAMA_CPP_PYTHON_VERSION"
  local build="$source/build" driver="$PEERS_SOURCE/llama_bench.cc"
  if [[ ! -f "$source/CMakeLists.txt" ]]; then
    say "fetching llama-cpp-python $version"
    make_venv
    "$BITSHARD_VENV/bin/pip" download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d "$folder/sd" ||
      die "pip could not fetch llama-cpp-python $version; is there a network?"
    mkdir -p "$folder/llamapy"
    tar -xzf "$folder/sd/llama_cpp_python-$version.tar.gz" -C "$folder/llamapy" --strip-components=1
  fi
  if [[ ! -x "$build/bin/llama-bench" || ! -x "$build/bin/llama-quantize" || ! -x "$build/bin/ggml-rpc-server" ]]; then
    say "building llama.cpp in $folder (log: $folder/build.log)"
    {
      cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_RPC=ON \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT="py$version" &&
        cmake --build "$build" -j"$(nproc)" --target llama-bench llama-quantize ggml-rpc-server
    } > "$folder/build.log" 2>&1 || die "llama.cpp does not build; see $folder/build.log"
  fi
  if [[ ! -x "$folder/llama_bench" || "$driver" -nt "$folder/llama_bench" ]]; then
    local libraries=("$build/src/libllama.a" "$build/ggml/src/libggml.a" "$build/ggml/src/libggml-cpu.a"
      "$build/ggml/src/ggml-rpc/libggml-rpc.a" "$build/ggml/src/libggml-base.a" -fopenmp -lpthread -ldl)
    grep -q ibverbs "$build/build.ninja" && libraries+=(-libverbs)
    g++ -O2 -std=c++20 -I"$source/include" -I"$source/ggml/include" "$driver" -o "$folder/llama_bench" "${libraries[@]}" ||
      die "llama_bench does not build"
  fi
}

# build_llama_server FOLDER: llama-server too, some ten minutes more.
build_llama_server() {
  local build="$1/llamapy/vendor/llama.cpp/build"
  build_llama_cpp "$1"
  [[ -x "$build/bin/llama-server" ]] && return 0
  say "building llama-server in $1 (log: $1/server.log)"
  cmake --build "$build" -j"$(nproc)" --target llama-server > "$1/server.log" 2>&1 ||
    die "llama-server does not build; see $1/server.log"
}

# python_of FOLDER: a Python with numpy, for the converters.
python_of() {
  if [[ ! -x "$1/pyv/bin/python" ]]; then
    python3 -m venv "$1/pyv" || die "python3 -m venv $1/pyv failed"
    "$1/pyv/bin/pip" install -q numpy pyyaml tqdm requests || die "pip could not install numpy; is there a network?"
  fi
  echo "$1/pyv/bin/python"
}

# make_synthetic_model FOLDER OUT.gguf: random weights, the tokenizer of SmolLM2.
make_synthetic_model() {
  [[ -s "$2" ]] && return 0
  fetch_model
  local python
  python="$(python_of "$1")"
  say "making $2"
  PYTHONPATH="$1/llamapy/vendor/llama.cpp/gguf-py" "$python" "$PEERS_SOURCE/synthetic_llama.py" "$BITSHARD_MODEL" \
    "$2.f16" --hidden=512 --layers=30 --heads=8 --kv-heads=4 --ffn=1536
  "$1/llamapy/vendor/llama.cpp/build/bin/llama-quantize" "$2.f16" "$2.part" Q4_0 > "$1/quantize.log" 2>&1 ||
    die "llama-quantize failed; see $1/quantize.log"
  mv "$2.part" "$2"
  rm "$2.f16"
}

# build_distributed_llama FOLDER GIT MODEL.gguf: the program, and the model in its format.
build_distributed_llama() {
  local name python
  if [[ ! -x "$1/dllama/dllama" ]]; then
    say "building distributed-llama"
    mkdir -p "$1/dllama"
    git --git-dir="$2" archive HEAD | tar -x -C "$1/dllama"
    make -s -C "$1/dllama" dllama > "$1/dllama.log" 2>&1 || die "distributed-llama does not build; see $1/dllama.log"
  fi
  name="$(basename "$3" .gguf)"
  [[ -s "$1/$name.m" && -s "$1/$name.t" ]] && return 0
  python="$(python_of "$1")"
  PYTHONPATH="$1/llamapy/vendor/llama.cpp/gguf-py" "$python" "$PEERS_SOURCE/gguf_to_dllama.py" "$3" "$1/$name.m" "$1/$name.t"
}
