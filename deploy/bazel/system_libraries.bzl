"""Debian's C++ libraries as Bazel repositories.

Their headers lie in the compiler's own include folder (so they are system headers: no warnings from them) and their
libraries in its library folder; a repository therefore holds linker options and defines only. Neither is an input that
Bazel hashes: the versions of all these packages reach every action's key through --action_env=BITSHARD_TOOLCHAIN,
which deploy/local/setup.sh writes next to --disk_cache.
"""

def _library(name, linkopts = [], defines = [], deps = []):
    return struct(name = name, linkopts = linkopts, defines = defines, deps = deps)

# Stands for the names of all of Abseil's libraries, which depend on its version.
_ALL_OF_ABSEIL = "(all of Abseil)"

# repository -> a header that must be there, the Debian package that has it, and the targets
_REPOSITORIES = {
    "absl": struct(
        header = "absl/base/config.h",
        package = "libabsl-dev",
        # A hundred small shared libraries: --as-needed keeps those that a binary really uses.
        libraries = [_library("absl", ["-Wl,--as-needed", _ALL_OF_ABSEIL])],
    ),
    "benchmark": struct(
        header = "benchmark/benchmark.h",
        package = "libbenchmark-dev",
        libraries = [_library("benchmark", ["-lbenchmark", "-lpthread"])],
    ),
    "gloo": struct(
        header = "gloo/transport/tcp/device.h",
        package = "libgloo-dev",
        libraries = [_library("gloo", ["-lgloo"])],
    ),
    "grpc": struct(
        header = "grpcpp/grpcpp.h",
        package = "libgrpc++-dev",
        libraries = [
            _library(
                "grpc++",
                ["-lgrpc++", "-lgrpc", "-lgpr"],
                deps = ["@absl//:absl", "@protobuf//:protobuf"],
            ),
            # Registers itself from a static initialiser: nothing refers to it.
            _library(
                "grpc++_reflection",
                ["-Wl,--no-as-needed", "-lgrpc++_reflection", "-Wl,--as-needed"],
                deps = [":grpc++"],
            ),
            _library("grpcpp_channelz", ["-lgrpcpp_channelz"], deps = [":grpc++"]),
            # Templates over google.rpc.Status (ours is //proto:rpc_status_cc); Debian's library is empty.
            _library("grpc++_error_details", deps = [":grpc++"]),
        ],
    ),
    "gtest": struct(
        header = "gtest/gtest.h",
        package = "libgtest-dev",
        libraries = [
            _library("gtest", ["-lgmock", "-lgtest", "-lpthread"]),
            _library("gtest_main", ["-lgmock_main"], deps = [":gtest"]),
        ],
    ),
    "icu": struct(
        header = "unicode/utypes.h",
        package = "libicu-dev",
        libraries = [_library("icu", ["-licui18n", "-licuuc", "-licudata"])],
    ),
    "nlohmann_json": struct(
        header = "nlohmann/json.hpp",
        package = "nlohmann-json3-dev",
        libraries = [_library("json")],
    ),
    "openssl": struct(
        header = "openssl/evp.h",
        package = "libssl-dev",
        libraries = [_library("crypto", ["-lcrypto"])],
    ),
    "pcre2": struct(
        header = "pcre2.h",
        package = "libpcre2-dev",
        libraries = [_library("pcre2", ["-lpcre2-8"])],
    ),
    "prometheus_cpp": struct(
        header = "prometheus/registry.h",
        package = "prometheus-cpp-dev",
        libraries = [_library("pull", ["-lprometheus-cpp-pull", "-lprometheus-cpp-core"])],
    ),
    "protobuf": struct(
        header = "google/protobuf/message.h",
        package = "libprotobuf-dev",
        libraries = [_library("protobuf", ["-lprotobuf", "-lpthread"])],
    ),
    "spdlog": struct(
        header = "spdlog/spdlog.h",
        package = "libspdlog-dev",
        libraries = [_library(
            "spdlog",
            ["-lspdlog", "-lfmt"],
            defines = ["SPDLOG_COMPILED_LIB", "SPDLOG_FMT_EXTERNAL", "SPDLOG_SHARED_LIB"],
        )],
    ),
}

_CC_LIBRARY = """
cc_library(
    name = {name},
    defines = {defines},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
    deps = {deps},
)
"""

def _system_library_impl(repository_ctx):
    spec = _REPOSITORIES[repository_ctx.attr.key]
    multiarch = repository_ctx.execute(["gcc", "-print-multiarch"]).stdout.strip()
    include_dirs = ["/usr/include", "/usr/include/" + multiarch]
    if not [d for d in include_dirs if repository_ctx.path(d + "/" + spec.header).exists]:
        fail("no {}: apt-get install {} (tests/run.sh installs all that is needed)".format(spec.header, spec.package))

    build = ""
    for library in spec.libraries:
        linkopts = []
        for option in library.linkopts:
            linkopts += _abseil_linkopts(repository_ctx, multiarch) if option == _ALL_OF_ABSEIL else [option]
        build += _CC_LIBRARY.format(
            name = repr(library.name),
            defines = repr(library.defines),
            linkopts = repr(linkopts),
            deps = repr(library.deps),
        )
    repository_ctx.file("WORKSPACE", "")
    repository_ctx.file("BUILD.bazel", build)

def _abseil_linkopts(repository_ctx, multiarch):
    listing = repository_ctx.execute(["find", "/usr/lib/" + multiarch, "-name", "libabsl_*.so", "-printf", "%f\n"])
    return sorted(["-l" + name[len("lib"):-len(".so")] for name in listing.stdout.splitlines()])

_system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {"key": attr.string(mandatory = True)},
    local = True,
)

def system_libraries():
    for key in _REPOSITORIES:
        _system_library(name = key, key = key)
