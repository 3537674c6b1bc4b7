#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the reference and the guide with Doxygen, which fails on any warning, and looks at the pages.
Usage: pages.py SOURCE_ROOT OUTPUT_FOLDER DOXYGEN DOXYFILE
GPUMEM_SOURCE and GPUMEM_VERSION are set, as for Doxygen itself.
"""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import browser
from tap import Tap

FENCE = re.compile(r"^```(\w*)\n.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+)\.md\)")


def headings_that_skip(page):
    level = 0
    for found in re.findall(r"<h([1-6])>", page):
        if int(found) > level + 1:
            yield f"h{found} below h{level}"
        level = int(found)


def without_colour(text, page):
    """Languages of which no block has a colour. A single block may have no word to colour."""
    languages = [language for language in FENCE.findall(text)]
    blocks = page.split('<div class="fragment">')[1:]
    if len(blocks) != len(languages):
        return [f"{len(languages)} blocks of code became {len(blocks)}"]
    coloured = {language for language, block in zip(languages, blocks)
                if re.search(r'<span class="(keyword|comment|string|preprocessor)', block.split("<!-- fragment -->")[0])}
    # A page may have only one line of a language, such as a command without options.
    return [language for language in sorted(set(languages) - coloured - {""}) if languages.count(language) > 1]


def look(tap, folder, names):
    """Opens pages as a phone does, and in the dark."""
    titles = ("on a phone the pages are as wide as the screen, and none is wider", "the pages can be dark",
              "on a phone no table scrolls up and down in itself")
    program = browser.find()
    if not program:
        for title in titles:
            tap.skip(title, f"none of {', '.join(browser.PROGRAMS)} is installed")
        return
    wide, light, scrolling = [], [], []
    with browser.started(program) as window:
        window.ask("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False})
        for name in names:
            window.open((folder / f"{name}.html").as_uri(), dark=True)
            left, width = window.evaluate("[document.getElementById('doc-content').getBoundingClientRect().left,"
                                          " document.documentElement.scrollWidth]")
            if left or width > 390:
                wide.append(f"{name}: begins at {left}, {width} wide")
            if window.evaluate("[...document.querySelectorAll('div.contents table')].some(table => table.scrollHeight > table.clientHeight"
                               " && getComputedStyle(table).overflowY != 'hidden')"):
                scrolling.append(name)
            if window.evaluate("getComputedStyle(document.documentElement).filter") == "none":
                light.append(name)
            # Inverted once: under the filter the page is as in the light.
            colour = window.evaluate("getComputedStyle(document.body).backgroundColor")
            if not re.fullmatch(r"rgb\(2[45]\d, 2[45]\d, 2[45]\d\)|rgba\(0, 0, 0, 0\)", colour):
                light.append(f"{name}: {colour} is inverted")
    tap.check(titles[0], wide)
    tap.check(titles[1], light)
    tap.check(titles[2], scrolling)


def main():
    source, output = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    result = subprocess.run(sys.argv[3:5], env={**os.environ, "GPUMEM_DOCS": str(output)},
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    tap = Tap()
    tap.check("Doxygen has nothing to say", result.stdout if result.returncode or result.stdout.strip() else "")
    if result.returncode:
        tap.finish()
        return

    folder = output / "html"
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (source / "docs").glob("*.md")}
    pages = {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in texts}
    order = [(title, name) for title, name in LINK.findall(texts["index"])]
    tree = (folder / "navtreedata.js").read_text(encoding="utf-8")
    shown = re.findall(r'^    \[ "(.*?)", "([\w-]+)\.html"', tree, re.MULTILINE)
    tap.check("the first page has every page", sorted(set(texts) - {"index"} ^ {name for _, name in order}))
    # By their own titles, which the first page may shorten.
    titled = [(re.match(r"# (.*)\n", texts[name])[1], name) for _, name in order]
    tap.check("the sidebar has the pages in the order of the first page",
              "" if shown[:len(titled)] == titled else f"{shown} begins otherwise than {titled}")
    ids = {}
    for name, page in pages.items():
        title = re.match(r"# (.*)\n", texts[name])[1]
        tap.check(f"{name} has its title", [] if f'<div class="title">{html.escape(title)} </div>' in page else [title])
        tap.check(f"the headings of {name} nest", list(headings_that_skip(page)))
        tap.check(f"the code of {name} is coloured", without_colour(texts[name], page))
        wrong = re.findall(r'href="[^"]*\.md[^"]*"', page)
        for target, anchor in re.findall(r'href="([\w-]+\.html)#([^"]+)"', page):
            if target not in ids:
                file = folder / target
                ids[target] = set(re.findall(r'\bid="([^"]+)"|\bname="([^"]+)"', file.read_text(encoding="utf-8"))
                                  if file.exists() else [])
                ids[target] = {first or second for first, second in ids[target]}
            if anchor not in ids[target]:
                wrong.append(f"{target}#{anchor}")
        tap.check(f"the links of {name} lead somewhere", wrong)

    every = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.html"))}
    tap.check("no page has Markdown that was not understood",
              [name for name, page in every.items()
               if not name.endswith("_source") and "`" in re.sub(r'<div class="fragment">.*?</div><!-- fragment -->', "", page,
                                                                 flags=re.DOTALL)])
    base = re.sub(r"<[^>]*>", "", every["base_8h"])
    tap.check("base.h has its macros, each with its own text",
              [words for words in (r"GPUMEM_API\s+(?:&#160;)*\s*Marks an exported function",
                                   r"GPUMEM_CALL\s+(?:&#160;)*\s*Calling convention") if not re.search(words, base)])
    tap.check("no alias is expanded in the conventions of base.h",
              ["Handles"] if "that any handle can cause" in base else [])
    tap.check("a declaration shows no macro of the export",
              [name for name, page in every.items()
               if name.endswith("_8h") and re.search(r'class="memname">(?:<[^>]*>)*GPUMEM_(?:API|CALL)\b', page)])
    tap.check("the reference is called so, on the first page and in the sidebar",
              [] if '<a href="files.html">' in every["index"] and '[ "Reference", "files.html"' in tree else ["it is not"])

    tap.check("no page names the folder of the sources",
              [path.name for path in sorted(folder.glob("*.html")) if str(source) in path.read_text(encoding="utf-8")])
    sheet = (source / "docs" / "pages.css").read_text(encoding="utf-8")
    sizes = [int(re.search(rf"{re.escape(what)}[^{{]*{{ font-size: (\d+)px", sheet)[1])
             for what in (".title", "div.contents h1", "div.contents h2", "div.contents h3", "div.contents h4")]
    tap.check("a heading is larger than those below it",
              "" if all(above > below for above, below in zip(sizes, sizes[1:])) else str(sizes))
    look(tap, folder, ("index", "choosing", "go", "performance", "files", "device_8h"))
    tap.finish()


if __name__ == "__main__":
    main()
