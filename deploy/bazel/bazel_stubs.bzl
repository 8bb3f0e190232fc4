"""The few outside repositories that Bazel 4.2.3's own embedded tools load, as stubs.

Debian's bazel-bootstrap comes without them, and Debian's current rules_cc is too new for it. The native rules are
built into this Bazel, so a re-export is all that its tools need.
"""

_REEXPORT = "{name} = native.{name}\n"

# A .bzl file can't assign a built-in of its own name; through a second file it can.
_REEXPORT_PROTO_INFO = "load(\":proto_info.bzl\", \"proto_info\")\nProtoInfo = proto_info\n"

_CC_RULES = ["cc_binary", "cc_import", "cc_library", "cc_proto_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"]
_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_package_configuration",
    "java_plugin",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def _stub_repository_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "")
    for path, content in repository_ctx.attr.files.items():
        package = path.rpartition("/")[0]
        repository_ctx.file(package + "/BUILD.bazel" if package else "BUILD.bazel", "")
        repository_ctx.file(path, content)

_stub_repository = repository_rule(
    implementation = _stub_repository_impl,
    attrs = {"files": attr.string_dict(doc = "path -> content")},
)

def _reexport(names):
    return "".join([_REEXPORT.format(name = name) for name in names])

def bazel_stubs():
    _stub_repository(
        name = "rules_cc",
        files = {
            "cc/defs.bzl": _reexport(_CC_RULES),
            "cc/find_cc_toolchain.bzl": (
                "load(\"@bazel_tools//tools/cpp:toolchain_utils.bzl\", _find = \"find_cpp_toolchain\")\n" +
                "find_cc_toolchain = _find\n"
            ),
        },
    )
    _stub_repository(
        name = "rules_java",
        files = {"java/defs.bzl": _reexport(_JAVA_RULES)},
    )
    _stub_repository(
        name = "rules_proto",
        files = {
            "proto/proto_info.bzl": "proto_info = ProtoInfo\n",
            "proto/defs.bzl": _reexport(["proto_library", "proto_lang_toolchain"]) + _REEXPORT_PROTO_INFO,
        },
    )
    _stub_repository(
        name = "remote_coverage_tools",
        files = {"BUILD.bazel": "filegroup(name = \"coverage_report_generator\", srcs = [], visibility = [\"//visibility:public\"])\n"},
    )
    native.local_repository(
        name = "platforms",
        path = "/usr/share/bazel/platforms",
    )
