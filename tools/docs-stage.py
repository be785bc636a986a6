#!/usr/bin/env python3
"""Copies the tracked documents, and the files that they link to, into a folder with the tree's own layout.

    tools/docs-stage.py FOLDER

A link to a folder becomes one to its README.md, or plain text where there is none: a site has no listings.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*```")


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "-z", *patterns], check=True, capture_output=True, text=True).stdout
    return [name for name in out.split("\0") if name and os.path.exists(name)]


def stage(page, into):
    folder = os.path.dirname(page)

    def link(match):
        mark, text, target, anchor = match.groups()
        path = os.path.normpath(os.path.join(folder, target))
        if os.path.isdir(path):
            readme = os.path.join(path, "README.md")
            if not os.path.exists(readme):
                return text
            target = os.path.relpath(readme, folder or ".")
        elif os.path.exists(path) and not path.endswith(".md"):
            copy = into / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        return f"{mark}[{text}]({target}{anchor or ''})"

    lines, inside = [], False
    for line in pathlib.Path(page).read_text().split("\n"):
        if FENCE.match(line):
            inside = not inside
        lines.append(line if inside else LINK.sub(link, line))
    copy = into / page
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("\n".join(lines))


def main():
    into = pathlib.Path(sys.argv[1])
    shutil.rmtree(into, ignore_errors=True)
    for page in tracked("*.md"):
        stage(page, into)


main()
