"""What a program is compiled and linked with, for those who do it again with one file replaced (emu/mutate.py)."""

def _from_runfiles(path):
    # external/x/y in the execution root is ../x/y from the runfiles' own root.
    return "../" + path[len("external/"):] if path.startswith("external/") else path

def _link_inputs_impl(ctx):
    files, flags = [], []
    for linker_input in ctx.attr.dep[CcInfo].linking_context.linker_inputs.to_list():
        for library in linker_input.libraries:
            archive = library.static_library or library.pic_static_library or library.dynamic_library
            files.append(archive)
            path = archive.short_path
            if library.alwayslink:
                flags += ["-Wl,--whole-archive", path, "-Wl,--no-whole-archive"]
            else:
                flags.append(path)
        flags += linker_input.user_link_flags
    link = ctx.actions.declare_file(ctx.label.name + ".link")
    ctx.actions.write(link, "".join([flag + "\n" for flag in flags]))

    context = ctx.attr.dep[CcInfo].compilation_context
    folders = [
        _from_runfiles(folder)
        for folder in context.system_includes.to_list()
        if not folder.startswith("bazel-out/")
    ]
    include = ctx.actions.declare_file(ctx.label.name + ".include")
    ctx.actions.write(include, "".join([folder + "\n" for folder in folders]))
    headers = ctx.runfiles(files = files + [link, include], transitive_files = context.headers)
    return [DefaultInfo(files = depset([link, include]), runfiles = headers)]

# <name>.link: the linker's arguments for `dep` and all it needs; <name>.include: the folders of system headers. One a line,
# paths from the runfiles' root, where the headers are too.
link_inputs = rule(
    implementation = _link_inputs_impl,
    attrs = {"dep": attr.label(mandatory = True, providers = [CcInfo])},
)
