#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares the README and the guide with what they speak of.
Usage: guide.py SOURCE_ROOT PROGRAM [--update]

--update writes the tables of statuses in docs/errors.md, of capabilities in docs/capabilities.md and of variables in
docs/environment.md anew, and tests nothing.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import description
from tap import Tap

READ = r"\bread_\w+\(\s*\"(\w+)\"[^;]*?&(?:request|host)\.([\w.]+)\)"
# A table of docs/environment.md has the variables whose comments stand in such a place, the first that fits.
VARIABLES = {"host backend": "impl/core/instance/default.cpp GPUMEM_HOST_", "default instance": "impl/core/instance/default.cpp ",
             "hubs and keepers": ("impl/core/share/link/hub.cpp ", "impl/platform/service_manager.cpp "), "program": "bindings/cli/", "Rust": "bindings/rust/", "wheels": "bindings/python/setup.py ",
             "plug-ins": "bindings/python/gpumem/adapters/", "bindings": "bindings/python/", "torch_memory_saver": "adapters/tms/"}
# The row of docs/choosing.md that has the costs of an answer of its tree, which begins so.
ROWS_OF_ANSWERS = {"a buffer that is shared": "imported", "a buffer": "buffer", "a pool": "a block of a pool", "managed": "managed",
                   "device": "device", "used repeatedly": "registered", "used once": "pageable", "pinned": "pinned"}
YES_OR_NO = "yes or no"
ANSWERS = {"GPUMEM_ANSWER_TYPE_INT": "number", "GPUMEM_ANSWER_TYPE_BYTES": "bytes", "GPUMEM_ANSWER_EMULATED": "yes, no or emulated"}


def code_blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def leads_somewhere(page, target, anchor):
    other = page.parent / target if target else page
    if not other.exists():
        return False
    headings = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
    return not anchor or anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def numbers_not_measured(docs, text):
    """The times and rates of a row that are in none of the files of docs/measured that it links to, those of the tree that are not in the
    row of their kind, and answers of the tree that have none."""
    cost = r"([\d.]+(?: to [\d.]+)?) (?:ns|us|ms|GB/s)\b"
    with_unit = cost.replace("(", "(?:", 1)
    tree = text.split("## Which one?\n")[1].split("```\n")[1]
    known = {kind: set(re.findall(with_unit, row)) for kind, row in re.findall(r"^\| ([^|]*) (\|.*\]\(measured/.*\|)$", text, re.MULTILINE)}
    missing = []
    for answer in map(str.strip, re.split(r"-->|  (?=used )", tree)[1:]):
        if answer:
            kind = next((row for beginning, row in ROWS_OF_ANSWERS.items() if answer.startswith(beginning)), "")
            costs = re.findall(with_unit, answer)
            missing += [f"{one}: in the tree, and not in the row of {kind}" for one in costs if one not in known.get(kind, ())]
            missing += [f"no cost: {answer}"] * (not costs)
    for row in re.findall(r"^\|.*\]\(measured/.*\|$", text, re.MULTILINE):
        files = [docs / name for name in re.findall(r"\]\((measured/[^)]*)\)", row)]
        there = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
        numbers = set(re.findall(cost, row))
        missing += [f"{number}: {row}" for number in sorted(numbers) if not re.search(rf"(?<![\d.,]){re.escape(number)}(?![.,]?\d)", there)]
    return missing


def without_figure(docs, pages):
    """Kinds of memory that have no line in the figure of choosing.md, and sections of other pages that should have a figure and have none."""
    kinds = pages[docs / "choosing.md"].split("## Which one?\n")[0]
    figure = kinds.split("```\n")[1]
    rows = [re.sub(r"^pinned, |:.*|\[|\].*", "", row) for row in re.findall(r"^\| (?!Kind)(\S.*?) \|", kinds, re.MULTILINE)]
    missing = [f"choosing.md: {kind}" for kind in rows if not re.search(rf"^ {kind} ", figure, re.MULTILINE)]
    for name, heading in (("choosing", "Memory that the device uses in place"), ("managed-memory", "Managed memory"), ("pools", "The layers"),
                          ("virtual-memory", "Virtual memory, growth and sleep"), ("virtual-memory", "The sizes of a buffer"),
                          ("sharing", "Between two processes"), ("sharing", "Hubs"), ("sharing", "Rings")):
        section = re.split(r"^#", re.split(rf"^#+ {heading}\n", pages[docs / f"{name}.md"], flags=re.MULTILINE)[1], flags=re.MULTILINE)[0]
        missing += [] if "" in re.findall(r"^```(\w*)\n.*?^```$", section, re.DOTALL | re.MULTILINE) else [f"{name}.md: {heading}"]
    return missing if rows else ["no kind of memory"]


def setups_that_differ(pages):
    """Meson ignores the options of a second setup of a folder, so a page must not name it with others."""
    known = {}
    problems = []
    for path, text in pages.items():
        for folder, options in re.findall(r"^meson setup (\S+) ?([^&\n]*)", text, re.MULTILINE):
            options = sorted(options.split())
            if known.setdefault(folder, options) != options:
                problems.append(f"{path.name}: {folder} with {options}, elsewhere with {known[folder]}")
    return problems if known else ["no page sets up a build"]


def with_table(text, name, table):
    """The page with another table between its marks."""
    return re.sub(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", lambda match: match[1] + table + match[2], text,
                  flags=re.DOTALL)


def sources(root):
    """The code of the library, the program, the adapters and the bindings, in whatever language, by its path."""
    for path in (path for top in ("impl", "capi/src", "bindings", "adapters") for path in sorted((root / top).rglob("*"))):
        name = str(path.relative_to(root))
        if path.suffix in (".c", ".cpp", ".cs", ".go", ".h", ".py", ".rs") and path.is_file() and not re.search(
                r"/(?:tests|examples|bench|target)/|_test\.go$|/layout\.rs$", name):
            yield name, path.read_text(encoding="utf-8")


def variables(root):
    """Tables of the variables of the environment, from a comment where each is read: NAME | values | default | meaning. Their names, and
    those of the default instance; and comments that stand where nothing reads the variable, or have other fields."""
    rows, names, strays = {name: "" for name in VARIABLES}, [], []
    fields = dict(re.findall(READ, (root / "impl" / "core" / "instance" / "default.cpp").read_text(encoding="utf-8")))
    for path, code in sources(root):
        for name, text in re.findall(r"^ *(?://|#) ([A-Z][A-Z0-9_]+) \| (.*(?:\n *(?://|#) (?![A-Z0-9_]+ \|).*)*)", code, re.MULTILINE):
            cells = re.sub(r"\n *(?://|#)", "", text).split(" | ")
            table = next((table for table, place in VARIABLES.items() if f"{path} {name}".startswith(place)), None)
            if not table or len(cells) != 3 or not re.search(rf'"{name}(?:\\0)?"', code):
                strays.append(f"{path}: {name}")
                continue
            field = f" `{fields[name].replace('.', '_')}` |" if name in fields else ""
            rows[table] += f"| `{name}` |{field} {' | '.join(cells)} |\n"
            names.append(name)
    head, with_field = ("| Variable | Values | Default | Meaning |\n|---|---|---|---|\n",
                        "| Variable | Field | Values | Default | Meaning |\n|---|---|---|---|---|\n")
    tables = {name: (with_field if "default.cpp" in VARIABLES[name] else head) + text for name, text in rows.items()}
    return tables, names, set(fields), strays


def answers_of(root, backend):
    """What a backend can answer, by capability: from the case of each in its code, and the functions that this calls."""
    code = (root / "impl" / "backends" / backend / "capability.cpp").read_text(encoding="utf-8")
    functions = dict(re.findall(r"^Capability (\w+)(\(.*?^}$)", code, re.DOTALL | re.MULTILINE))
    answers = {}
    for labels, body in re.findall(r"((?:^    case GPUMEM_CAPABILITY_\w+:(?: {)?\n)+)(.*?)(?=^    (?:case|default)\b|^  })", code,
                                   re.DOTALL | re.MULTILINE):
        body += "".join(text for name, text in functions.items() if re.search(rf"\b{name}\(", body))
        answer = next((text for word, text in ANSWERS.items() if word in body), YES_OR_NO)
        for constant in re.findall(r"case (\w+)", labels):
            # One that has two cases, because the first hands on to the second, has the answers of both.
            answers[constant] = answers.get(constant, answer) if answer == YES_OR_NO else answer
    return answers


def capabilities(root):
    """Their table, from the library's list, the comments in the header and the code of the backends; their names; and what is wrong."""
    listed = dict(re.findall(r'CapabilityName{(\w+), "([^"]+)"}',
                             (root / "impl" / "core" / "device" / "capability.cpp").read_text(encoding="utf-8")))
    header = description.Description([root / "capi" / "include" / "gpumem" / "capability.h"])
    known = {"the header": {constant.name: constant.text for constant in header.constants if constant.type == "gpumem_capability"},
             **{f"the {backend} backend": answers_of(root, backend) for backend in ("cuda", "host")}}
    problems = [f"{constant}: {place} {'lacks it' if constant in listed else 'has it, the list of the library lacks it'}"
                for place, constants in known.items() for constant in sorted(listed.keys() ^ constants.keys())]
    comments, *answers = known.values()
    table = "| Name | Constant | Answer | Question |\n|---|---|---|---|\n"
    for constant, name in listed.items():
        begin, _, question = comments.get(constant, "").partition(": ")
        if begin != f"`{name}`" or "?" not in question:
            problems.append(f"the comment of {constant} must be its name, `{name}`, a colon, and a question")
        question = re.sub(r"#(GPUMEM_\w+)", r"`\1`", question)
        answer = next((each[constant] for each in answers if each.get(constant, YES_OR_NO) != YES_OR_NO), YES_OR_NO)
        table += f"| `{name}` | `{constant.replace('GPUMEM_CAPABILITY_', '')}` | {answer} | {question} |\n"
    return table, set(listed.values()), problems


def variables_read(folder, constants):
    """Every text that can be only the name of a variable of gpumem, however it is read, and what is read of others."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("**/*")) if path.suffix in (".cpp", ".h"))
    own = set(re.findall(r'"(GPUMEM_\w*[A-Z])"', code)) - constants
    return own | set(re.findall(r'\b(?:environment|getenv|number_of)\("(\w+)"\)', code))


def variables_of_everything(root, constants):
    """Each variable of the environment that is read, and where."""
    reads = re.compile(r'(?:\benvironment|getenv|Getenv|GetEnvironmentVariable|\bnumber_of|\bis_set|\bvar|\bvar_os|\bset|\benviron(?:\.get)?)'
                       r'[(\[]\s*b?"([A-Z][A-Z0-9_]+)')
    # What is read by a name that stands elsewhere.
    own = re.compile(r'b?"((?:GPUMEM|TMS|VLLM|PYTORCH|PKG_CONFIG)_[A-Z0-9_]*[A-Z])(?:\\0)?"')
    found = {}
    for name, code in sources(root):
        for variable in {*reads.findall(code), *own.findall(code)} - constants:
            found.setdefault(variable, name)
    return found


def host_function_list(root, page):
    """Allowed are the functions whose comments do not say that a host function is refused, or only under a condition."""
    section = page.split("## What a host function may call\n")[1].split("Any other returns")[0]
    listed = set(re.findall(r"\b(gpumem_\w+)\(\)", section))
    functions = description.Description(sorted((root / "capi" / "include" / "gpumem").glob("*.h"))).functions
    refused = re.compile(r"\\retval GPUMEM_ERROR_INVALID_STATE (?!first called)"
                         r"(?:(?!\\retval)[^\\])*?(?:from a[\s*]+host[\s*]+function(?! about)|see gpumem_\w+\(\))", re.DOTALL)
    allowed = {function.name for function in functions if not refused.search(function.comment)}
    return [f"{name} is {'' if name in allowed else 'not '}allowed, says its comment" for name in sorted(allowed ^ listed)]


def backend_page(root, page):
    """What differs between docs/backend.md and the contract of backends, and between it and the files that tell backends apart."""
    problems = []
    # What core fills is no part of a backend.
    for path in sorted((root / "impl" / "contract").glob("*.h")):
        code = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        for name, body in re.findall(r"^class (?!Layout\b)(\w+)[^;{]*\{\n(.*?)^\};", code, re.DOTALL | re.MULTILINE):
            methods = re.findall(r"\bvirtual\s+[^;{]*?\b(?<!~)(\w+)\([^;{]*\)[^;{=]*(= 0;|\{|;)", body)
            row = re.search(rf"^\| `{name}` (?:\|.*)?\|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)
            listed = [set(re.findall(r"`(\w+)`", cell)) for cell in row.groups()] if row else [set(), set()]
            for what, found, cell in zip(("must", "may"), ({method for method, end in methods if (end == "= 0;") == must}
                                                           for must in (True, False)), listed):
                problems += [f"{name} {what} have {method}, say{'s' * (method in found)} {'the contract' if method in found else 'only the page'}"
                             for method in sorted(found ^ cell)]
    tells = {str(path.relative_to(root)) for top in ("impl/core", "capi/src", "bindings/cli") for path in (root / top).rglob("*.cpp")
             if re.search(r'GPUMEM_BACKEND_(?:CUDA|HOST)\b|"cuda"', path.read_text(encoding="utf-8"))} - {"impl/core/instance/backends.cpp"}
    listed = set(re.findall(r"^\| `([\w/]+\.cpp)` \|", page, re.MULTILINE)) - {"tests/conformance/harness.cpp"}
    return problems + [f"tells backends apart, or does not any more: {name}" for name in sorted(tells ^ listed)]


def python_names(root, page):
    """Names under "From PyCUDA" of porting.md that the Python package lacks: in the text, in the second column, and behind a name of the
    package or of an object in the third."""
    sys.path.insert(0, str(root / "bindings" / "python"))
    import gpumem
    intro, table = page.split("## From PyCUDA\n")[1].split("\n## ")[0].split("| PyCUDA |")
    of_module, of_base = intro.split("So have")
    beginnings, endings = re.search(r";\s+([^;]*), each with([^;]*);", of_module).groups()
    listed = [*re.findall(r"`(\w+)`", re.sub(r"`device`|;[^;]*, each with[^;]*;", "", of_module)),
              *(begin + end for begin in re.findall(r"`(\w+_)`", beginnings) for end in re.findall(r"`(\w+)`", endings))]
    objects = {"gpumem": gpumem, "device": gpumem.Device, "memory": gpumem.Memory, "event": gpumem.Event, "Stream": gpumem.Stream}
    wrong = [name for name in listed if not hasattr(gpumem, name)]
    wrong += [f"base.{name}" for name in re.findall(r"`(\w+)`", of_base.replace("`base`", "")) if not hasattr(gpumem.View, name)]
    for cells in re.findall(r"^\| `[^|]*\|([^|]*)\|([^|]*)\|$", table, re.MULTILINE):
        for code in re.findall(r"`([^`]+)`", "".join(cells)):
            name, method = re.match(r"(\w+)(?:\.(\w+))?", code).groups()
            if name in objects and method:
                wrong += [] if hasattr(objects[name], method) else [code]
            elif f"`{name}`" in cells[0] or re.match(r"[A-Z]\w+\(", code):
                wrong += [] if any(hasattr(each, name) for each in (gpumem, gpumem.Instance, gpumem.Stream)) else [code]
    return wrong if len(listed) > 20 else ["the text lists no functions"]


def paths_that_lead_nowhere(root, text):
    """A path may begin at any folder, and leave out what a file name ends in."""
    known = set()
    for top in ("adapters", "bindings", "capi", "docs", "impl", "packaging", "tests"):
        for path in (root / top).glob("**/*"):
            whole = path.relative_to(root).as_posix()
            known |= {f"/{whole}", f"/{whole.rpartition('.')[0]}", f"/{top}"}
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_.]*|[a-z0-9_]+\.(?:cpp|h|py))`", text))
    return [name for name in sorted(named) if not any(path.endswith(f"/{name.rstrip('/')}") for path in known)]


def main():
    root, program = Path(sys.argv[1]), sys.argv[2]
    docs = root / "docs"

    def output(*arguments):
        return subprocess.run([program, *arguments], text=True, stdout=subprocess.PIPE, check=True).stdout

    tables, with_comment, of_default_instance, strays = variables(root)
    capability_table, capability_names, wrong_capabilities = capabilities(root)
    environment = docs / "environment.md"
    generated = [(docs / "errors.md", "status table", output("errors", "--markdown")),
                 *((environment, f"table: {name}", text) for name, text in tables.items()), (docs / "capabilities.md", "capability table", capability_table)]
    if sys.argv[3:] == ["--update"]:
        for path, name, table in generated:
            path.write_text(with_table(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")
        return

    tap = Tap()
    pages = {path: path.read_text(encoding="utf-8") for path in [
        *(root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(docs.glob("*.md"))]}
    examples = {path.name: path.read_text(encoding="utf-8") for path in (docs / "examples").glob("*.c*")}

    for path, name, table in generated:
        up_to_date = f"<!-- {name}: begin -->\n{table}<!-- {name}: end -->" in pages[path]
        tap.check(f"the {name} of {path.name} is that of the code", "" if up_to_date else "out of date: run this program with --update")

    # Only the lines that name licence and purpose are left out.
    program_text = "".join(examples["readme.c"].splitlines(True)[2:])
    tap.check("the README shows readme.c",
              "" if program_text in code_blocks(pages[root / "README.md"], "c") else "it differs")
    # One after the other, the blocks are all that is needed to compile.
    program_text = "".join(examples["cpp.cpp"].splitlines(True)[2:])
    tap.check("cpp.md shows the whole of cpp.cpp",
              "" if "\n".join(code_blocks(pages[docs / "cpp.md"], "cpp")) == program_text else "it differs")
    tap.check("each build folder is set up with the same options wherever it stands", setups_that_differ(pages))
    for path, text in pages.items():
        tap.check(f"the code in {path.name} is part of the examples",
                  [f"not found in docs/examples:\n{block}" for block in code_blocks(text, "c") + code_blocks(text, "cpp")
                   if not any(f"\n{block}" in example for example in examples.values())])
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        targets = re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", prose)
        tap.check(f"the links in {path.name} lead somewhere",
                  [f"{target}#{anchor}" for target, anchor in targets if not leads_somewhere(path, target, anchor)])
        tap.check(f"{path.name} names no function that does not exist",
                  [name for name in sorted(set(re.findall(r"\b(gpumem_[a-z0-9_]+)\(\)", text)))
                   if not any(f"{name}(" in header.read_text(encoding="utf-8")
                              for header in (root / "capi" / "include" / "gpumem").glob("*.h"))])

    in_cpp = [path.name for path in sorted((root / "capi" / "include" / "gpumem").glob("*.hpp"))]
    tap.check("index.md and cpp.md name the headers that the reference leaves out",
              [f"{page}: {name}" for page in ("index", "cpp") for name in in_cpp if f"{name}`" not in pages[docs / f"{page}.md"]])
    tap.check("choosing.md has only costs that were measured", numbers_not_measured(docs, pages[docs / "choosing.md"]))
    tap.check("each kind of memory has a figure", without_figure(docs, pages))
    tap.check("backend.md has what a backend must and may have, and where backends are told apart", backend_page(root, pages[docs / "backend.md"]))
    tap.check("porting.md has no name of Python that the package lacks", python_names(root, pages[docs / "porting.md"]))
    for name in ("architecture.md", "add-a-function.md", "backend.md", "testing.md"):
        tap.check(f"{name} names no file that does not exist", paths_that_lead_nowhere(root, pages[docs / name]))

    headers = "".join((root / "capi" / "include" / "gpumem" / name).read_text(encoding="utf-8")
                      for name in ("instance.h", "host.h"))
    in_headers = set(re.findall(r"`(GPUMEM_(?:HOST_[A-Z_]+|BACKEND|PIN_BUDGET|TRANSFER_[A-Z]+))`", headers))
    tap.check("the headers have each variable of the default instance", sorted(in_headers ^ of_default_instance))
    constants = set(re.findall(r"^#define (GPUMEM_\w+)", "".join(
        path.read_text(encoding="utf-8") for path in (root / "capi" / "include" / "gpumem").glob("*.h")), re.MULTILINE))
    by_library, by_program = (variables_read(root / folder, constants) for folder in ("impl", "bindings/cli"))
    manual = (docs / "man" / "gpumem.1").read_text(encoding="utf-8")
    in_manual = set(re.findall(r"(?:^\.Ev |\$)(\w*[A-Z])\b", manual, re.MULTILINE))
    tap.check("only the default instance reads GPUMEM_ variables in the library",
              sorted({name for name in by_library if name.startswith("GPUMEM_")} - of_default_instance))
    tap.check("gpumem(1) has each other variable that is read", sorted((by_library | by_program) - of_default_instance - in_manual))
    tap.check("gpumem(1) has no variable that nothing reads", sorted(in_manual - by_library - by_program))

    everywhere = variables_of_everything(root, constants)
    set_by_cargo = set(re.findall(r"`(\w+)`", re.search(r"cargo sets (.*?):\n", pages[environment], re.DOTALL)[1]))
    tap.check("each variable has a comment where it is read: NAME | values | default | meaning",
              [f"{name}, read by {everywhere[name]}" for name in sorted(everywhere.keys() - {*with_comment} - set_by_cargo)])
    tap.check("each variable has one such comment, and none stands where nothing reads the variable",
              [f"twice: {name}" for name in sorted({name for name in with_comment if with_comment.count(name) > 1})] + strays +
              sorted(({*with_comment} | set_by_cargo) - everywhere.keys()))

    masked = re.search(r"entry points to treat as missing: ((?:.|\n)*?)NULL means", headers)[1]
    tap.check("environment.md has each entry point that can be masked",
              [name for name in re.findall(r"`(\w+)`", masked) if f"`{name}`" not in tables["host backend"]])

    tap.check("threads-fork-exit.md has what a host function may call",
              host_function_list(root, pages[docs / "threads-fork-exit.md"]))

    options = set(re.findall(r"^option\('(\w+)'", (root / "meson_options.txt").read_text(encoding="utf-8"), re.MULTILINE))
    listed = set(re.findall(r"^\| `(\w+)` \|", pages[docs / "building.md"], re.MULTILINE))
    tap.check("building.md has each option of the build", [str(sorted(options ^ listed))] if options ^ listed else [])

    devices = json.loads(output("info", "--backend", "host", "--json"))["devices"]
    found = {capability["name"].split()[0] for capability in devices[0]["capabilities"]}
    tap.check("each capability has its name and a question in the header, and an answer in each backend", wrong_capabilities)
    tap.check("the library answers each capability that it lists, and no other", sorted(found ^ capability_names))
    table = pages[docs / "contract.md"].split("| capability | type |")[1].split("\n\n")[0]
    ruled = set(re.findall(r"^\| ([a-z_]+\.[a-z0-9_]+|uva)", table, re.MULTILINE))
    tap.check("contract.md has no capability that does not exist", [str(sorted(ruled - found))] if ruled - found or len(ruled) < 20 else [])
    tap.finish()


if __name__ == "__main__":
    main()
