"""The built-in tools that read a session's folder: ``ls``, ``read``, ``glob``, ``grep`` (§12).

All are ``read`` tools, confined by :mod:`.confine`, bounded in entries, lines, bytes and time, and sorted, so that
equal folders give equal answers. What was left out is said in brackets at the end. A refusal is a failed result with
``Error: ...``, never an exception.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from ..errors import ToolError
from .browse import Answer, Bounds, OutOfTime, Patience, Pattern, Walk
from .confine import Refused, Tree, show
from .context import ToolContext
from .result import ToolOutput
from .search import Search, is_binary, line_matcher, read_lines
from .toolkit import tool

P = ParamSpec("P")

_SUFFIX = {"folder": "/", "link": " (link)", "other": " (not a file)"}


def workspace_tools(
    write: bool = False, bash: bool = False, *, hidden: bool = False
) -> tuple[Callable[..., str | ToolOutput], ...]:
    """The built-in tools, to be given as ``tools=`` (alone or beside others): ``ls, read, glob, grep``.

    Args:
        write: also ``write`` and ``edit``; they come with a later release and are refused now.
        bash: also ``bash``; it comes with a later release and is refused now.
        hidden: show dot-files and common secret names (keys, credentials) too. Database files of ours never are.

    Raises:
        ToolError: ``write`` or ``bash`` was asked for.
    """
    if write or bash:
        raise ToolError("workspace_tools: write tools (write, edit, bash) come with a later release")
    workspace = Workspace(hidden=hidden)
    return (workspace.ls, workspace.read, workspace.glob, workspace.grep)


def _answered(function: Callable[P, str]) -> Callable[P, str | ToolOutput]:
    @functools.wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> str | ToolOutput:
        try:
            return function(*args, **kwargs)
        except Refused as refusal:
            return ToolOutput(f"Error: {refusal}", ok=False)

    return answer


class Workspace:
    """The four tools as methods, with common limits."""

    def __init__(self, *, hidden: bool = False, bounds: Bounds | None = None) -> None:
        self._hidden = hidden
        self._bounds = bounds or Bounds()

    @tool(effect="read")
    @_answered
    def ls(self, ctx: ToolContext, path: str = ".") -> str:
        """List a folder of the workspace, sorted by name: folders end with "/", files show their size.

        Args:
            path: folder, relative to the workspace.
        """
        bounds = self._bounds
        listing = Tree(ctx, hidden=self._hidden).entries(path, max_entries=bounds.scanned)
        answer = Answer(bounds.shown_bytes)
        for count, entry in enumerate(listing.entries):
            size = f" ({entry.size} bytes)" if entry.kind == "file" else ""
            if count == bounds.listed or not answer.add(show(entry.name) + _SUFFIX.get(entry.kind, size)):
                answer.note(f"{len(listing.entries) - count} more entries not shown; use glob to narrow down")
                break
        if not listing.entries:
            answer.note("nothing to show")
        answer.left_out(listing.left_out, "hidden or protected entries")
        if listing.partial:
            answer.note(f"the folder has more than {bounds.scanned} entries; only these were looked at")
        return answer.text()

    @tool(effect="read")
    @_answered
    def read(self, ctx: ToolContext, path: str, offset: int = 0, limit: int = 400) -> str:
        """Read lines of a text file of the workspace. Says at the end whether there is more.

        Args:
            path: file, relative to the workspace.
            offset: number of lines to skip.
            limit: most lines to return.
        """
        if offset < 0 or limit < 1:
            raise Refused("offset must be at least 0 and limit at least 1")
        patience = Patience(ctx, self._bounds.seconds)
        with (
            Tree(ctx, hidden=self._hidden).file(path) as (descriptor, status),
            open(descriptor, "rb", closefd=False) as file,
        ):
            if is_binary(file):
                return f"[binary file of {status.st_size} bytes, not shown]"
            try:
                return read_lines(file, offset, limit, self._bounds, patience)
            except OutOfTime:
                raise Refused(f"{show(path)}: line {offset} was not reached in {self._bounds.seconds:g} s") from None

    @tool(effect="read")
    @_answered
    def glob(self, ctx: ToolContext, pattern: str) -> str:
        """Find paths in the workspace by name, sorted. Symbolic links are listed but not followed.

        Args:
            pattern: relative path with "*", "?" and "[...]" inside one name, and "**" for any number of folders, such
                as "src/**/*.py".
        """
        bounds = self._bounds
        answer = Answer(bounds.shown_bytes)
        walk = Walk(Tree(ctx, hidden=self._hidden), Patience(ctx, bounds.seconds), bounds)
        found = 0
        try:
            for path, entry in walk.run(".", Pattern(pattern)):
                if found == bounds.listed or not answer.add(show(path) + _SUFFIX.get(entry.kind, "")):
                    answer.note(f"more than {found} matches; the rest is not shown")
                    break
                found += 1
        except OutOfTime:
            answer.note(f"stopped after {bounds.seconds:g} s; the rest was not looked at")
        if not found:
            answer.note("no match")
        walk.explain(answer)
        return answer.text()

    @tool(effect="read")
    @_answered
    def grep(self, ctx: ToolContext, pattern: str, path: str = ".") -> str:
        """Search text files of the workspace line by line; answers are "path:line number: line".

        Args:
            pattern: regular expression without look-around and back-references; start with "(?i)" to ignore case.
            path: file or folder, relative to the workspace.
        """
        bounds = self._bounds
        tree = Tree(ctx, hidden=self._hidden)
        patience = Patience(ctx, bounds.seconds)
        search = Search(tree, line_matcher(pattern), bounds, patience)
        walk = Walk(tree, patience, bounds)
        try:
            if not tree.is_folder(path):
                search.file(path)
            else:
                for found, entry in walk.run(path, Pattern("**")):
                    if entry.kind == "file" and not search.walked_file(found):
                        break
        except OutOfTime:
            search.answer.note(f"stopped after {bounds.seconds:g} s; the rest was not looked at")
        search.explain()
        walk.explain(search.answer)
        return search.answer.text()
