"""Copies the files of a git revision into a temporary directory.

Nothing in the repository changes: no worktree is registered, and the index, the references, the
stash and the hooks are not used. Git writes the files with a separate index. The copy has a
separate ``.git`` directory, because programs ask git for their revision. This directory refers to
the objects of the repository.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from placement_checks.core.errors import InputError, UsageError
from placement_checks.core.target import SourceTree
from placement_checks.util.progress import step
from placement_checks.util.temporary import temporary_directory

_PREFIX = "placement_checks_revision_"
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"  # the first line of a file of Git LFS
_MAX_POINTER = 1024  # bytes
_SUBMODULE = "160000"  # the mode of a submodule in a tree
# Git sets these variables for hooks. They name the repository of the hook.
GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
# No hook, monitor or shared index of the repository is used or written.
_ISOLATED = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "core.splitIndex=false", "-c", "submodule.recurse=false"),
)


@contextlib.contextmanager
def checked_out(revision: str, links: Sequence[str] = ()) -> Iterator[SourceTree]:
    """Yield a copy of the repository of the current directory at a revision.

    Submodules that are checked out are copied too, at the commits that the revision names.

    Args:
        revision: any name of a commit, such as ``main`` or ``HEAD~1``.
        links: paths of uncommitted files and directories in the working tree. The copy has a
            symbolic link to each. If a directory also exists at the revision, its missing files
            are linked.

    Raises:
        InputError: git is not installed, the current directory is in no repository, a shallow
            clone lacks the revision, a submodule lacks its commit, or the files cannot be written.
        UsageError: there is no such revision; or a link does not exist, is not in the repository,
            or is committed at the revision.
    """
    repository = _repository()
    commit = _commit(revision)
    with contextlib.ExitStack() as stack:
        try:
            directory, guard = stack.enter_context(temporary_directory(_PREFIX))
            root = directory / repository.name
            with step(f"checking out {revision}"):
                _write_files(repository, commit, revision, root, guard)
                tree = SourceTree(root, repository, revision, commit, tuple(_pointers(root)))
                for path in links:
                    _link(path, tree)
        except OSError as error:
            raise InputError(
                f"--since {revision}",
                f"cannot be checked out: {error.strerror or error}",
                "set TMPDIR to a directory with enough space",
                is_predicate=True,
            ) from None
        yield tree


def _repository() -> Path:
    """The top directory of the repository of the current directory, without symbolic links."""
    found = _git("rev-parse", "--show-toplevel")
    if found.returncode == 0 and found.stdout.strip():
        return Path(found.stdout.removesuffix("\n")).resolve()
    reason = _last_line(found.stderr)
    if "not a git repository" in reason or not reason:
        raise InputError(
            str(Path.cwd()),
            "is not in a git repository",
            "run the command in the repository of the program, or compare with a baseline",
            is_predicate=True,
        )
    raise InputError(str(Path.cwd()), f"git cannot read its repository: {reason}")


def _commit(revision: str) -> str:
    """The hash of the commit of a revision."""
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found.returncode == 0:
        return found.stdout.strip()
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        raise InputError(
            f"--since {revision}",
            "is not in this clone, which is shallow",
            "run git fetch --unshallow, or set fetch-depth: 0 for actions/checkout",
            is_predicate=True,
        )
    raise UsageError(
        f"--since {revision}",
        "is not a revision of this repository",
        "name a branch, tag or commit, such as HEAD~1 or origin/main",
        is_predicate=True,
    )


def _write_files(repository: Path, commit: str, revision: str, root: Path, guard: int) -> None:
    """Write the files of a commit and of its submodules into a directory."""
    where = _git("rev-parse", "--absolute-git-dir", "--git-common-dir", folder=repository)
    git_directory, common = where.stdout.splitlines()
    objects = (repository / common / "objects").resolve()
    own = root / ".git"
    for folder in ("objects/info", "refs"):
        (own / folder).mkdir(parents=True)
    (own / "objects/info/alternates").write_text(f"{objects}\n")
    (own / "HEAD").write_text(f"{commit}\n")
    (own / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    written = _git(
        f"--git-dir={git_directory}",
        f"--work-tree={root}",
        *("read-tree", "--reset", "-u", "--no-recurse-submodules", commit),
        folder=root,
        variables={"GIT_INDEX_FILE": str(own / "index"), "GIT_LFS_SKIP_SMUDGE": "1"},
        inherited=[guard],
    )
    if written.returncode:
        raise InputError(
            f"--since {revision}",
            f"git cannot check it out: {_last_line(written.stderr)}",
            details=written.stderr.strip(),
        )
    for path, expected in _submodules(repository, commit):
        module = repository / path
        if not (module / ".git").exists():
            continue  # the submodule is not checked out
        if _git("cat-file", "-e", expected, folder=module).returncode:
            raise InputError(
                f"the submodule {path}",
                f"lacks commit {expected[:10]}, which {revision} needs",
                f"run git -C {path} fetch",
                is_predicate=True,
            )
        _write_files(module, expected, revision, root / path, guard)


def _submodules(repository: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Yield the path and commit of each submodule."""
    listing = _git("ls-tree", "-r", "-z", "--full-tree", commit, folder=repository).stdout
    for entry in listing.split("\0"):
        words, _, path = entry.partition("\t")
        if words.startswith(_SUBMODULE):
            yield path, words.split()[2]


def _link(path: str, tree: SourceTree) -> None:
    """Add symbolic links to a path of the working tree."""
    given = Path(os.path.normpath(Path.cwd() / path))
    source = given.parent.resolve() / given.name  # a link is not resolved
    if not source.exists():
        raise UsageError(f"--link {path}", "there is no such file or directory", "check the path")
    if not source.is_relative_to(tree.repository) or source == tree.repository:
        raise UsageError(
            f"--link {path}",
            f"is not in the repository, {tree.repository}",
            "name a path in the repository; files elsewhere need no link",
            is_predicate=True,
        )
    if not _add_links(source, tree):
        raise UsageError(
            path,
            f"is committed at {tree.revision}, and the committed version is used",
            "omit --link",
            is_predicate=True,
        )


def _add_links(source: Path, tree: SourceTree) -> int:
    """Link a path, or the parts of a directory that the copy lacks; return their number."""
    target = tree.counterpart(source)
    if str(target.relative_to(tree.root)) in tree.pointers:
        target.unlink(missing_ok=True)  # the working tree may have the content
    elif target.is_dir() and source.is_dir() and not target.is_symlink():
        return sum(_add_links(each, tree) for each in sorted(source.iterdir()))
    elif os.path.lexists(target):
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)
    return 1


def _pointers(root: Path) -> Iterator[str]:
    """Yield the files of a copy that contain only a pointer of Git LFS."""
    for folder, folders, files in os.walk(root):
        if ".git" in folders:
            folders.remove(".git")
        for name in files:
            file = Path(folder, name)
            if file.is_symlink() or file.stat().st_size > _MAX_POINTER:
                continue
            if file.read_bytes().startswith(_POINTER):
                yield str(file.relative_to(root))


_PATH = re.compile(r"[^\s'\"`:;,()\[\]{}<>]+")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def with_missing_data(error: InputError, tree: SourceTree, folder: Path) -> InputError:
    """Add the fix to an error, if it names files or a module that are only in the working tree.

    ``folder`` is the directory of the repository from which the program ran in the copy.
    """
    text = f"{error.message}\n{error.details}"
    for relative in (*_named_modules(text, tree), *_named_files(text, tree, folder)):
        missing = next(
            part
            for part in (*reversed(relative.parents), relative)
            if not (tree.root / part).exists() or str(part) in tree.pointers
        )
        if str(missing) in tree.pointers:
            reason = f"{missing} is in Git LFS and is not downloaded"
        else:
            reason = f"{missing} is not committed at {tree.revision}"
        link = os.path.relpath(tree.repository / missing, folder)
        return error.copy(
            type(error),
            message=f"{error.message}; {reason}",
            fix=f"use it from the working tree: --link {shlex.quote(link)}",
        )
    return error


def _named_files(text: str, tree: SourceTree, folder: Path) -> Iterator[Path]:
    """Yield the paths in a text that exist in the working tree, but not in the copy."""
    for word in _PATH.findall(text):
        path = Path(word.rstrip("."))
        place = path if path.is_absolute() else Path(os.path.normpath(folder / path))
        for top in (tree.root, tree.repository):
            if place.is_relative_to(top) and place != top:
                relative = place.relative_to(top)
                is_pointer = str(relative) in tree.pointers
                is_missing = not (tree.root / relative).exists()
                if is_pointer or (is_missing and (tree.repository / relative).exists()):
                    yield relative


def _named_modules(text: str, tree: SourceTree) -> Iterator[Path]:
    """Yield the untracked files of modules that were not found, such as compiled modules."""
    for module in _NO_MODULE.findall(text):
        path = module.replace(".", "/")
        patterns = [f":(top,glob)**/{path}{suffix}" for suffix in (".py", ".*.so", ".so", "/*")]
        found = _git("ls-files", "--others", "-z", "--full-name", "--", *patterns).stdout
        for file in filter(None, found.split("\0")):
            if not (tree.root / file).exists():
                yield Path(file)


def _git(
    *arguments: str,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run git, and return its output and status.

    If a directory is given, git runs there without the variables of a hook. Git inherits the
    descriptors in ``inherited``.

    Raises:
        InputError: git is not installed.
    """
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if folder is not None:
        for name in GIT_VARIABLES:
            environment.pop(name, None)
    try:
        return subprocess.run(
            ["git", *_ISOLATED, *arguments],
            cwd=folder,
            env={**environment, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            pass_fds=inherited,
        )
    except FileNotFoundError:
        raise InputError(
            "git",
            "is not installed",
            "install git: --since reads revisions with it",
            is_predicate=True,
        ) from None


def _last_line(text: str) -> str:
    """The last line of git's error, without its label."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("fatal: ").removeprefix("error: ") if lines else ""
