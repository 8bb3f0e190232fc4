"""C++ from .proto files by the installed protoc.

Generated headers are marked as system headers, so that our -Werror does not judge protoc's code.
"""

def _generate(name, src, outs, options, tools = ""):
    native.genrule(
        name = name,
        # All of the room's .proto files: an import is found whatever the file, and protoc is quick.
        srcs = native.glob(["*.proto"]),
        outs = outs,
        cmd = " && ".join([
            tools + "protoc -I. {} {}/{}".format(options, native.package_name(), src),
            "sed -i '1i #pragma GCC system_header' $(RULEDIR)/{}".format(outs[0]),
        ]),
    )

def cc_proto(name, src, deps = [], visibility = None):
    """The messages of `src`, as "<package>/<src>.pb.h"."""
    stem = src[:-len(".proto")]
    outs = [stem + ".pb.h", stem + ".pb.cc"]
    _generate(stem + "_pb", src, outs, "--cpp_out=$(GENDIR)")
    native.cc_library(
        name = name,
        hdrs = [outs[0]],
        srcs = [outs[1]],
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["@protobuf//:protobuf"],
    )

def cc_grpc(name, src, messages, visibility = None):
    """The services of `src`, as "<package>/<src>.grpc.pb.h". `messages` is its cc_proto."""
    stem = src[:-len(".proto")]
    outs = [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    _generate(
        stem + "_grpc_pb",
        src,
        outs,
        "--plugin=protoc-gen-grpc=$$plugin --grpc_out=$(GENDIR)",
        tools = "plugin=$$(command -v grpc_cpp_plugin) && ",
    )
    native.cc_library(
        name = name,
        hdrs = [outs[0]],
        srcs = [outs[1]],
        copts = ["-w"],
        visibility = visibility,
        deps = [messages, "@grpc//:grpc++"],
    )
