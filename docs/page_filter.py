#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prepares a page of the guide for Doxygen, which runs this as its filter: page_filter.py PAGE.md > prepared

Doxygen knows no Rust, Go or shell, takes the last # of "C#" for Markdown, orders pages by their titles, and does not
find the heading of a link such as building.md#options. The pages stay plain Markdown.
"""

import html
import re
import sys
from pathlib import Path

COMMENT_C, COMMENT_SH = r"//[^\n]*|/\*.*?\*/", r"(?<!\S)#[^\n]*"
QUOTED = r'"(?:\\.|[^"\\])*"'
# By language: comments, texts, keywords, and names that the language itself has.
LANGUAGES = {
    "rust": (COMMENT_C, QUOTED + r"|'(?:\\.|[^'\\])'",
             "as async await break const continue else enum extern fn for if impl in let loop match mod move mut pub ref "
             "return self Self static struct super trait true false type unsafe use where while",
             r"#!?\[[^\]]*\]|\b[a-z_]+!|'[a-z]+\b|\b(?:u8|u16|u32|u64|usize|i32|i64|isize|f32|f64|bool|str|Vec|Option|"
             r"Some|None|Result|Ok|Err|Box|String)\b"),
    "go": (COMMENT_C, QUOTED + r"|`[^`]*`|'(?:\\.|[^'\\])'",
           "break case chan const continue default defer else for func go goto if import interface map package range "
           "return select struct switch type var nil true false",
           r"\b(?:bool|byte|error|float32|float64|int|int32|int64|string|uint32|uint64|uintptr|make|len|append)\b"),
    "sh": (COMMENT_SH, QUOTED + r"|'[^']*'",
           "case cd do done elif else esac export fi for if in source sudo then while",
           r"\$\{?[A-Za-z_]\w*\}?|\b[A-Z_]+(?==)|(?<=\s)--?[A-Za-z][\w-]*"),
    "sql": (r"--[^\n]*", r"'(?:''|[^'])*'",
            "AND AS CREATE DROP EXTENSION FROM INSERT INTO JOIN ON OR SELECT SET TABLE UPDATE WHERE",
            r"\b(?:bigint|integer|real|smallint|text)\b"),
    "toml": (COMMENT_SH, QUOTED, "true false", r"(?m:^\[[^\]\n]*\])"),
    "yaml": (COMMENT_SH, QUOTED + r"|'[^']*'", "true false", r"(?m:^[ -]*[\w-]+(?=:))"),
    "cmake": (COMMENT_SH, QUOTED, "", r"\$\{\w+\}|\b[a-z_]+(?=\()"),
    "meson": (COMMENT_SH, r"'[^']*'", "true false if else endif foreach endforeach", r"\b[a-z_]+(?=\()"),
}
LINK = re.compile(r"\[([^\]]+)\]\((?:([\w-]+)\.md)?(?:#([\w-]+))?\)")
FENCE = re.compile(r"```(\w+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def coloured(language, code):
    """The lines of a block as Doxygen writes them, with its own classes for colours."""
    comment, text, keywords, names = LANGUAGES[language]
    words = rf"\b(?:{'|'.join(keywords.split()) or '(?!)'})\b"
    tokens = re.compile(rf"(?P<comment>{comment})|(?P<stringliteral>{text})|(?P<preprocessor>{names})|(?P<keyword>{words})",
                        re.DOTALL)
    code = code.expandtabs(4)
    lines, line = [], ""
    last = 0

    def add(piece, kind=None):
        nonlocal line
        for number, part in enumerate(piece.split("\n")):
            if number:
                lines.append(line)
                line = ""
            part = html.escape(part, quote=False).replace("\\", "&#92;").replace("@", "&#64;")
            line += f'<span class="{kind}">{part}</span>' if kind and part else part

    for token in tokens.finditer(code):
        add(code[last:token.start()])
        add(token.group(), token.lastgroup)
        last = token.end()
    add(code[last:])
    return "".join(f'<div class="line">{line}</div>\n' for line in [*lines, line])


def block(match):
    language, code = match.groups()
    if language not in LANGUAGES:
        return match.group()
    return f'\\htmlonly\n<div class="fragment">{coloured(language, code)}</div>\n\\endhtmlonly'


def label(page, heading):
    """GitHub's anchor of a heading, which is unique in its page only."""
    return page + "-" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def prepare(page, text):
    def link(match):
        shown, other, anchor = match.groups()
        if not other and not anchor:
            return match.group()
        target = (other or page) + (f"-{anchor}" if anchor else "")
        # The first page orders the others: it is their parent.
        return f'\\subpage {target} "{shown}"' if page == "index" else f"[{shown}](@ref {target})"

    def heading(match):
        level, words = match.groups()
        # The other way to write a title, which keeps the # of "C#".
        return f"{words} {{#{page}}}\n====" if level == "#" else f"{level} {words} {{#{label(page, words)}}}"

    # The headers are pages too; Doxygen calls the list of them files.html.
    text = text.replace("[reference](../capi/include/gpumem)", '<a href="files.html">reference</a>')
    # Code is left out of what is done to text.
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(pieces), 2):
        # What was measured is in the source, and not a page.
        pieces[number] = re.sub(r"(?<!!)\[([^\]]+)\]\(measured/[^)]*\)", r"\1", pieces[number])
        pieces[number] = LINK.sub(link, pieces[number])
        if page != "index":
            pieces[number] = re.sub(r"^(#+) (.*)$", heading, pieces[number], flags=re.MULTILINE)
    for number in range(1, len(pieces), 2):
        pieces[number] = FENCE.sub(block, pieces[number])
    return "".join(pieces)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.stdout.write(prepare(path.stem, path.read_text(encoding="utf-8")))
