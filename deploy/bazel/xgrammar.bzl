"""xgrammar's C++ core as @xgrammar, built from the sources of its PyPI package.

deploy/local/setup.sh fetches them by name, version and SHA-256 into the user's cache folder; the repository links to them
there. Their warnings are theirs.
"""

_BUILD = """
cc_library(
    name = "xgrammar",
    srcs = glob(
        ["cpp/**/*.cc", "cpp/**/*.h"],
        exclude = ["cpp/tvm_ffi/**"],
    ) + glob(["3rdparty/picojson/*.h", "3rdparty/dlpack/include/**/*.h"]),
    hdrs = glob(["include/xgrammar/*.h"]),
    # What it logs goes to functions that its user defines.
    defines = ["XGRAMMAR_LOG_CUSTOMIZE=1", "XGRAMMAR_ENABLE_CPPTRACE=0", "XGRAMMAR_ENABLE_INTERNAL_CHECK=0"],
    copts = ["-w"],
    includes = ["include", "3rdparty/dlpack/include", "3rdparty/picojson"],
    linkopts = ["-lpthread"],
    visibility = ["//visibility:public"],
)
"""

def _xgrammar_impl(repository_ctx):
    setup = repository_ctx.path(repository_ctx.attr.setup)
    fetched = repository_ctx.execute(
        ["bash", "-euo", "pipefail", "-c", "source \"$1\" && fetch_xgrammar && echo \"$BITSHARD_XGRAMMAR\"", "bash", str(setup)],
    )
    if fetched.return_code != 0:
        fail("no sources of xgrammar: " + fetched.stderr)
    folder = fetched.stdout.strip().split("\n")[-1]
    for part in ["cpp", "include", "3rdparty"]:
        repository_ctx.symlink(folder + "/" + part, part)
    repository_ctx.file("WORKSPACE", "")
    repository_ctx.file("BUILD.bazel", _BUILD)

_xgrammar = repository_rule(
    implementation = _xgrammar_impl,
    attrs = {"setup": attr.label(mandatory = True)},
    local = True,
)

def xgrammar():
    _xgrammar(name = "xgrammar", setup = "//:deploy/local/setup.sh")
