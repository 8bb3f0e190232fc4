"""CUDA kernels, one source built twice: by g++ for the emulator (kernels/cuda/emu), by nvcc for GPUs.

kernel_library(name) makes
  <name>_emu        host code, plain; under --config=asan with AddressSanitizer and UndefinedBehaviorSanitizer
  <name>_emu_check  host code whose every load and store calls the emulator's hooks. Never in one binary with <name>_emu:
                    both hold the inline functions of CUDA's headers, and the linker keeps either copy
  <name>_cuda       for GPUs. "manual": it needs a compiler (@nvcc) and minutes
"""

load("@nvcc//:defs.bzl", "DISASSEMBLER", "NVCC", "NVCC_VERSION")

KernelObjectsInfo = provider(fields = {"objects": "list of struct(source, object, ptxas): what nvcc made of each file"})

# The bits do not depend on the template around an expression: no fused multiply-add but the one written as such, as in
# .bazelrc. constexpr functions of shared headers are for devices too.
_NVCC_FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-Xcompiler=-ffp-contract=off", "-Xptxas=-v", "-I."]

# sm_80's code runs on sm_86 and 89 too, and its PTX is there for what is newer and not named.
_ARCHITECTURES = {
    "80": "arch=compute_80,code=[sm_80,compute_80]",
    "89": "arch=compute_89,code=sm_89",
    "90a": "arch=compute_90a,code=sm_90a",
    "100": "arch=compute_100,code=sm_100",
    "120": "arch=compute_120,code=sm_120",
}

_CI = ["80", "90a"]
_ALL = ["80", "89", "90a", "100", "120"]

def _select_by_architectures(what):
    return select({
        "//deploy/bazel:cuda_all": what(_ALL),
        "//conditions:default": what(_CI),
    })

def _code_define(architectures):
    words = [word for name in architectures for word in (["sm_80", "compute_80"] if name == "80" else ["sm_" + name])]
    return ["BITSHARD_CUDA_CODE='\"{}\"'".format(" ".join(words))]

def cuda_code_defines():
    """BITSHARD_CUDA_CODE, a string: what code kernel_library makes, "sm_80 compute_80 sm_90a"."""
    return _select_by_architectures(_code_define)

def _architectures(names):
    return names

def _stem(source):
    return source.basename[:-len(".cu")]

def _host_sources_impl(ctx):
    # One line each, so that messages name the kernel's own file; cc_library takes no .cu.
    stubs = []
    for source in ctx.files.srcs:
        stub = ctx.actions.declare_file("{}/{}.cc".format(ctx.label.name, _stem(source)))
        ctx.actions.write(stub, "#include \"{}\"\n".format(source.short_path))
        stubs.append(stub)
    return [DefaultInfo(files = depset(stubs))]

_host_sources = rule(
    implementation = _host_sources_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cu"])},
)

def _nvcc_archive_impl(ctx):
    if not NVCC:
        fail("{}: no CUDA compiler here: set CUDA_HOME, or build with --config=cuda, which fetches one".format(ctx.label))

    # nvcc has its toolkit's own headers.
    headers = [
        header
        for header in depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps]).to_list()
        if not header.path.startswith("external/")
    ]
    objects = []
    for source in ctx.files.srcs:
        made = ctx.actions.declare_file("{}/{}.o".format(ctx.label.name, _stem(source)))
        ptxas = ctx.actions.declare_file("{}/{}.ptxas".format(ctx.label.name, _stem(source)))
        ctx.actions.run_shell(
            mnemonic = "Nvcc",
            progress_message = "Compiling {} for GPUs".format(source.short_path),
            inputs = headers + [source],
            outputs = [made, ptxas],
            # The version, because the compiler is no input. A folder of its own, because nvcc names its files by its process id,
            # which in every sandbox is the same.
            command = (": nvcc {}; export TMPDIR; TMPDIR=$(mktemp -d); trap 'rm -rf \"$TMPDIR\"' EXIT; " +
                       "\"$@\" 2> {log} || {{ cat {log} >&2; exit 1; }}").format(NVCC_VERSION, log = ptxas.path),
            arguments = [NVCC] + _NVCC_FLAGS +
                        ["-gencode=" + _ARCHITECTURES[name] for name in ctx.attr.architectures] +
                        ["-c", source.path, "-o", made.path],
            use_default_shell_env = True,
        )
        objects.append(struct(source = source, object = made, ptxas = ptxas))
    archive = ctx.actions.declare_file("lib{}.a".format(ctx.label.name))
    ctx.actions.run_shell(
        mnemonic = "KernelArchive",
        inputs = [made.object for made in objects],
        outputs = [archive],
        command = "rm -f \"$1\"; ar rcsD \"$@\"",
        arguments = [archive.path] + [made.object.path for made in objects],
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([archive])), KernelObjectsInfo(objects = objects)]

_nvcc_archive = rule(
    implementation = _nvcc_archive_impl,
    attrs = {
        "architectures": attr.string_list(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def kernel_library(name, srcs, hdrs = [], deps = [], **kwargs):
    """Kernels and the host functions that launch them; see the head of this file.

    Args:
      name: of the targets' common beginning
      srcs: .cu files, compiled one by one
      hdrs: what those who call the launch functions include
      deps: cc_library targets with the headers that the .cu files include: device code is in headers alone
      **kwargs: visibility and the like, for all targets
    """
    _host_sources(
        name = name + "_host",
        srcs = srcs,
        tags = ["manual"],
    )
    native.cc_library(
        name = name + "_emu",
        srcs = [":" + name + "_host"],
        hdrs = hdrs,
        textual_hdrs = srcs,
        copts = ["-Wno-unknown-pragmas"],  # #pragma unroll
        deps = deps,
        **kwargs
    )
    native.cc_library(
        name = name + "_emu_check",
        testonly = True,
        srcs = [":" + name + "_host"],
        hdrs = hdrs,
        textual_hdrs = srcs,
        # In no linkopts: the hooks are ours and not libtsan's. Without -fno-tree-sra GCC takes 16-byte accesses apart.
        copts = [
            "-Wno-unknown-pragmas",
            "-O1",
            "-g1",
            "-gdwarf-4",  # addr2line of binutils 2.40 mixes up the stub and the kernel in DWARF 5
            "-fno-tree-sra",
            "-fsanitize=thread",
            "--param=tsan-instrument-func-entry-exit=0",
            "-U_FORTIFY_SOURCE",
        ],
        deps = deps + ["//kernels/cuda/emu:hooks"],
        **kwargs
    )
    native.cc_library(
        name = name + "_headers",
        hdrs = hdrs,
        deps = deps,
        **kwargs
    )
    _nvcc_archive(
        name = name + "_nvcc",
        srcs = srcs,
        architectures = _select_by_architectures(_architectures),
        tags = ["manual"],
        deps = [":" + name + "_headers"],
        **kwargs
    )
    native.cc_import(
        name = name + "_archive",
        static_library = ":" + name + "_nvcc",
        tags = ["manual"],
    )
    native.cc_library(
        name = name + "_cuda",
        hdrs = hdrs,
        tags = ["manual"],
        deps = deps + [":" + name + "_archive", "@cuda//:cudart"],
        **kwargs
    )

def _kernel_figures_impl(ctx):
    parts = []
    for dep in ctx.attr.kernels:
        for made in dep[KernelObjectsInfo].objects:
            part = ctx.actions.declare_file("{}/{}.tsv".format(ctx.label.name, _stem(made.source)))
            ctx.actions.run(
                mnemonic = "KernelFigures",
                executable = "/usr/bin/python3",
                inputs = [made.object, made.ptxas] + ctx.files.reader,
                outputs = [part],
                arguments = [ctx.files.reader[0].path, made.source.short_path, made.object.path, made.ptxas.path, DISASSEMBLER, part.path],
                use_default_shell_env = True,
            )
            parts.append(part)
    first = "nvcc\\t" + NVCC_VERSION if NVCC else "none\\tno CUDA compiler: no CUDA_HOME, no /usr/local/cuda, no --config=cuda"
    all_parts = ctx.actions.declare_file(ctx.label.name + ".tsv")
    ctx.actions.run_shell(
        inputs = parts,
        outputs = [all_parts],
        command = "out=\"$1\"; shift; {{ printf '{}\\n'; ((!$#)) || cat \"$@\"; }} > \"$out\"".format(first),
        arguments = [all_parts.path] + [part.path for part in parts],
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([all_parts]), runfiles = ctx.runfiles(files = [all_parts]))]

_kernel_figures = rule(
    implementation = _kernel_figures_impl,
    attrs = {
        "kernels": attr.label_list(providers = [KernelObjectsInfo]),
        "reader": attr.label(allow_single_file = [".py"], mandatory = True),
    },
)

def kernel_figures(name, kernels, reader, **kwargs):
    """<name>.tsv: what the compiler and the disassembler say of each kernel; without a compiler one line that says so.

    Args:
      name: of the target and the file
      kernels: names of kernel_library
      reader: the script that makes one file's lines
      **kwargs: visibility and the like
    """
    _kernel_figures(
        name = name,
        kernels = [kernel + "_nvcc" for kernel in kernels] if NVCC else [],
        reader = reader,
        **kwargs
    )
