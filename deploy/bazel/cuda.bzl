"""CUDA as repositories: @cuda and @nccl for those who include headers, @nvcc for the compiler, where there is one.

Without --config=cuda nothing here needs more than headers: @cuda//:headers are those of pinned wheels, the same on every
machine, so that the kernels' emulator is too. @nvcc finds a toolkit on the machine (CUDA_HOME, else /usr/local/cuda) and is empty
where there is none; with --config=cuda it then fetches one. The finding and fetching is deploy/local/setup.sh's.
The toolkit's files are no inputs that Bazel hashes: the compiler's version is in each action (kernel_library.bzl).
"""

# Cooperative groups are left out on purpose: the emulator does not know them.
_HEADERS = """
cc_library(
    name = "{name}",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*", "include/nv/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _setup(repository_ctx, command, *arguments):
    """The lines that a function of setup.sh prints."""
    result = repository_ctx.execute(
        ["bash", "-euo", "pipefail", "-c", "source \"$1\" && shift && \"$@\"", "bash"] +
        [str(repository_ctx.path(repository_ctx.attr.setup)), command] + list(arguments),
        environment = {"BITSHARD_CUDA": repository_ctx.os.environ.get("BITSHARD_CUDA", "")},
        timeout = 3600,
    )
    if result.return_code != 0:
        fail("{}: {}".format(command, result.stderr))
    if result.stderr:
        print(result.stderr.strip())  # such as which toolkit is passed over, and why
    return result.stdout.strip().split("\n")

def _write_build(repository_ctx, *parts):
    repository_ctx.file("WORKSPACE", "")
    repository_ctx.file("BUILD.bazel", "\n".join(parts))

def _repository(implementation):
    return repository_rule(
        implementation = implementation,
        attrs = {"setup": attr.label(mandatory = True)},
        environ = ["BITSHARD_CUDA", "CUDA_HOME"],
        local = True,
    )

_CUDA_ALIAS = """
alias(
    name = "{name}",
    actual = select({{
        "@//deploy/bazel:cuda": "{real}",
        "//conditions:default": "{otherwise}",
    }}),
    visibility = ["//visibility:public"],
)
"""

def _cuda_impl(repository_ctx):
    repository_ctx.symlink(_setup(repository_ctx, "cuda_headers")[0], "include")
    _write_build(
        repository_ctx,
        _HEADERS.format(name = "wheel_headers"),
        # Never two versions in one program.
        _CUDA_ALIAS.format(name = "headers", real = "@nvcc//:headers", otherwise = ":wheel_headers"),
        "alias(name = \"nccl_headers\", actual = \"@nccl//:headers\", visibility = [\"//visibility:public\"])",
        "alias(name = \"nccl\", actual = \"@nccl//:nccl\", visibility = [\"//visibility:public\"])",
        "alias(name = \"cudart\", actual = \"@nvcc//:cudart\", visibility = [\"//visibility:public\"])",
    )

_CUDART = """
cc_library(
    name = "cudart",
    linkopts = ["-L{lib}", "-l:libcudart_static.a", "-ldl", "-lpthread", "-lrt"],
    visibility = ["//visibility:public"],
    deps = [":headers"],
)
"""

# Loads fine without a compiler, says so when something that needs one is built.
_NO_COMPILER = """
genrule(
    name = "no_compiler",
    outs = ["no_compiler.h"],
    cmd = "echo 'error: no CUDA toolkit here: set CUDA_HOME, or build with --config=cuda, which fetches one' >&2; exit 1",
)

cc_library(
    name = "headers",
    hdrs = ["no_compiler.h"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "cudart",
    hdrs = ["no_compiler.h"],
    visibility = ["//visibility:public"],
)
"""

def _nvcc_impl(repository_ctx):
    toolkit = _setup(repository_ctx, "cuda_toolkit")[0]
    nvcc, version, disassembler = "", "", ""
    if toolkit:
        nvcc = toolkit + "/bin/nvcc"
        words = repository_ctx.execute([nvcc, "--version"]).stdout.replace("\n", " ").split(" ")
        versions = [word for word in words if word.startswith("V")]
        if not versions:
            fail(nvcc + " --version names no version")
        version = versions[-1][1:]
        disassembler = _setup(repository_ctx, "cuda_disassembler", toolkit)[0]
        lib = toolkit + ("/lib64" if repository_ctx.path(toolkit + "/lib64").exists else "/lib")
        repository_ctx.symlink(toolkit + "/include", "include")
        _write_build(repository_ctx, _HEADERS.format(name = "headers"), _CUDART.format(lib = lib))
    else:
        _write_build(repository_ctx, _NO_COMPILER)
    repository_ctx.file("defs.bzl", "\n".join([
        "\"\"\"The CUDA compiler of this machine; NVCC is empty where there is none.\"\"\"",
        "NVCC = {}".format(repr(nvcc)),
        "NVCC_VERSION = {}".format(repr(version)),
        "# The folder of cuobjdump and nvdisasm.",
        "DISASSEMBLER = {}".format(repr(disassembler)),
        "",
    ]))

_NCCL = """
cc_library(
    name = "headers",
    hdrs = ["include/nccl.h"],
    includes = ["include"],
    visibility = ["//visibility:public"],
    deps = ["@cuda//:headers"],
)

cc_library(
    name = "nccl",
    linkopts = ["-L{lib}", "-l:libnccl.so.2", "-Wl,-rpath,{lib}"],
    visibility = ["//visibility:public"],
    deps = [":headers"],
)
"""

def _nccl_impl(repository_ctx):
    include, lib = _setup(repository_ctx, "nccl", _setup(repository_ctx, "cuda_toolkit")[0])
    # This one file: beside it may lie another version of CUDA's headers.
    repository_ctx.symlink(include + "/nccl.h", "include/nccl.h")
    _write_build(repository_ctx, _NCCL.format(lib = lib))

_cuda = _repository(_cuda_impl)
_nvcc = _repository(_nvcc_impl)
_nccl = _repository(_nccl_impl)

def cuda_toolkit():
    for name, rule in {"cuda": _cuda, "nvcc": _nvcc, "nccl": _nccl}.items():
        rule(name = name, setup = "//:deploy/local/setup.sh")
