"""What can be relied on of code packages."""

from __future__ import annotations

import io
import os
import random
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from upshift.code import memo, packages
from upshift.code.packages import Package, PackagePart, make_package, preview_package
from upshift.errors import BlobMissing, StoreError, StoreUnavailable, UsageError
from upshift.model.settings.secrets import is_secret_file
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.home_folders import unpack
from upshift.runtime.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return fill(tmp_path / "project", "train.py", "pkg/__init__.py", "pkg/model.py")


def fill(folder: Path, *names: str, content: str | None = None) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n" if content is None else content)
    return folder


def left_out(package: Package) -> dict[str, str]:
    return {entry.path: entry.why for entry in package.left_out}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_package_holds_the_project_and_unpacks_to_the_same(
    project: Path, store: Store, tmp_path: Path
) -> None:
    package = make_package(project, store)
    assert package.files == ("pkg/__init__.py", "pkg/model.py", "train.py")
    assert package.left_out == ()
    assert package.bytes == store.blob_path(package.digest).stat().st_size
    unpacked = unpack(package.digest, store, tmp_path / "deep" / "code")
    assert tree(unpacked) == tree(project)


def test_a_preview_says_what_is_in_it_and_how_big(project: Path, store: Store) -> None:
    fill(project, "notes.txt", content="x" * 500)
    seen = preview_package(project, store)
    assert seen.parts == (
        PackagePart(name="notes.txt", files=1, bytes=500),
        PackagePart(name="pkg/", files=2, bytes=len("# pkg/__init__.py\n# pkg/model.py\n")),
        PackagePart(name="train.py", files=1, bytes=len("# train.py\n")),
    )
    assert (len(seen.files), seen.bytes) == (4, sum(part.bytes for part in seen.parts))


def test_the_same_content_gives_the_same_digest(project: Path, store: Store, tmp_path: Path) -> None:
    first = make_package(project, store)
    copy = tmp_path / "copy"
    for name in reversed(first.files):
        fill(copy, name)
        (copy / name).chmod(0o600)
        os.utime(copy / name, (10, 10))
    fill(copy, "pkg/__pycache__/model.cpython-311.pyc", "node_modules/x/index.js")
    (copy / "empty").mkdir()
    assert make_package(copy, store) == first
    (copy / "train.py").chmod(0o700)
    executable = make_package(copy, store)
    assert executable.digest != first.digest
    unpacked = unpack(executable.digest, store, tmp_path / "code")
    assert (unpacked / "train.py").stat().st_mode & 0o777 == 0o755
    assert (unpacked / "pkg" / "model.py").stat().st_mode & 0o777 == 0o644


def test_any_name_and_content_comes_back(store: Store, tmp_path: Path) -> None:
    project = tmp_path / "project"
    names = ["ünï/côde.py", "a" * 150 + "/" + "b" * 120, "empty", os.fsdecode(b"not-utf8-\xff.py"), "-x\n"]
    fill(project, *names, content="")
    (project / "bytes").write_bytes(bytes(range(256)) * 5)
    package = make_package(project, store)
    assert tree(unpack(package.digest, store, tmp_path / "code")) == tree(project)
    assert set(package.files) == {*names, "bytes"}


def test_gitignore_is_honoured_in_every_folder(project: Path, store: Store) -> None:
    fill(
        project, ".gitignore", content="*.log\n!keep.log\n/data/*\n!/data/labels.csv\nbuild/\n**/tmp/*.txt\n"
    )
    fill(project, "a.log", "keep.log", "data/big.bin", "data/labels.csv", "build/lib.py", "pkg/build/x.py")
    fill(project, "pkg/tmp/a.txt", "pkg/tmp/a.py", "build.py", "pkg/out/one", "pkg/out/two", "pkg/b.log")
    fill(project, "pkg/.gitignore", content="out/*\n!out/two\n!b.log\n")
    assert make_package(project, store).files == (
        *(".gitignore", "build.py", "data/labels.csv", "keep.log", "pkg/.gitignore", "pkg/__init__.py"),
        *("pkg/b.log", "pkg/model.py", "pkg/out/two", "pkg/tmp/a.py", "train.py"),
    )


def test_upshiftignore_decides_where_both_say_something(project: Path, store: Store) -> None:
    fill(project, ".gitignore", content="weights/\n*.csv\n")
    fill(project, ".upshiftignore", content="!weights/\n*.bin\nnotes.md\n")
    fill(project, "weights/a.npy", "weights/b.bin", "x.csv", "notes.md")
    files = make_package(project, store).files
    assert "weights/a.npy" in files
    assert not {"weights/b.bin", "x.csv", "notes.md"} & set(files)


def test_the_repository_around_the_project_has_a_say(project: Path, store: Store, tmp_path: Path) -> None:
    fill(tmp_path, ".git/HEAD", "project/a.log", "project/b.tmp", "project/pkg/c.log")
    fill(tmp_path, ".gitignore", content="*.log\n!/project/pkg/*.log\n")
    fill(tmp_path, ".git/info/exclude", content="*.tmp\n")
    files = make_package(project, store).files
    assert "pkg/c.log" in files
    assert not {"a.log", "b.tmp"} & set(files)


def test_a_project_that_its_repository_ignores_is_packaged_all_the_same(
    project: Path, store: Store, tmp_path: Path
) -> None:
    fill(tmp_path, ".git/HEAD")
    fill(tmp_path, ".gitignore", content="/project/\n")
    assert "train.py" in make_package(project, store).files


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("seed", range(40))
def test_what_is_ignored_is_what_git_ignores(seed: int, tmp_path: Path, store: Store) -> None:
    choose = random.Random(seed)
    project = tmp_path / "project"
    words = ["a", "b", "cc", "d.txt", "e.py", "x y", "ü"]
    for _ in range(40):
        path = project.joinpath(*choose.choices(words, k=choose.randint(1, 4)))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            fill(project, str(path.relative_to(project)))
    parts = [
        *words,
        "*",
        "**",
        "***",
        "*.txt",
        "?",
        "[ab]",
        "[!a]",
        "[]a-c]",
        "[[:alpha:]]",
        "c*",
        "**c",
        "x\\ y",
        "ü",
        "[",
        "\\a",
    ]
    for folder in [project, *(p for p in project.rglob("*") if p.is_dir() and choose.random() < 0.3)]:
        lines = [
            choose.choice(["", "", "!"])
            + choose.choice(["", "/"])
            + "/".join(choose.choices(parts, k=choose.choice([1, 1, 2, 3])))
            + choose.choice(["", "/", " "])
            for _ in range(choose.randint(0, 4))
        ]
        fill(folder, ".gitignore", content=choose.choice(["\n", "\r\n"]).join(lines))
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(project)]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
    )
    assert set(make_package(project, store).files) == set(filter(None, listed.stdout.split("\0")))


def test_secrets_environments_and_state_are_left_out_with_a_word(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_HOME", str(project / "state"))
    fill(
        project, ".env", "certs/server.pem", "keys/id_rsa", ".aws/config", "state/catalog.db", ".env.example"
    )
    fill(project, "envs/dev/pyvenv.cfg", "envs/dev/lib/x.py", ".git/config", "cache/y")
    package = make_package(project, store, exclude=[project / "cache"])
    assert left_out(package) == {
        ".aws/": "looks like a secret",
        ".env": "looks like a secret",
        "cache/": "Upshift's own state",
        "certs/server.pem": "looks like a secret",
        "envs/dev/": "a virtual environment",
        "keys/id_rsa": "looks like a secret",
        "state/": "Upshift's own state",
    }
    assert package.files == (".env.example", "pkg/__init__.py", "pkg/model.py", "train.py")


@pytest.mark.parametrize(
    "name",
    [
        *(
            ".env",
            ".env.local",
            "prod.env",
            "x.PEM",
            "id_ed25519",
            "credentials.json",
            ".netrc",
            "deploy/.ssh/",
        ),
        *("infra/terraform.tfstate", "terraform.tfstate.backup", "prod.tfvars", "prod.auto.tfvars.json"),
        *(".docker/config.json", "a/.docker/config.json", ".huggingface", "huggingface/token", "token"),
        *("pip.conf", "password.txt", "db_password.txt", "passwords.txt", "hub_token.txt", "API_KEY.txt"),
        *(
            "authinfo",
            "aws_credentials",
            "gcp-key.json",
            "htpasswd",
            "my.cnf",
            "oauth_token",
            "vault_pass.txt",
        ),
    ],
)
def test_names_that_look_like_secrets(name: str) -> None:
    assert is_secret_file(name)


@pytest.mark.parametrize(
    "name",
    [
        *(".env.example", "id_rsa.pub", "credentials.py", "environment.yml", "keys.py", "env", "main.tf"),
        *("prod.tfvars.example", ".docker/Dockerfile", "docker/config.json", "config.json", "a.env/x.txt"),
        *(
            "tokenizer.json",
            "tokens.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "token.py",
            "token/",
        ),
        *("password_reset.html", "secret_garden.txt", ".env/readme.txt"),
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not is_secret_file(name)


def test_links_lead_nowhere_but_into_the_project(project: Path, store: Store, tmp_path: Path) -> None:
    fill(tmp_path, "outside/passwords.txt", content="hunter2")
    fill(project, ".gitignore", content="hidden/\n")
    fill(project, "hidden/h.txt")
    for name, target in {
        "alias.py": "train.py",
        "models": "pkg",
        "pkg/up": "..",
        "out": str(tmp_path / "outside"),
        "out.txt": "../outside/passwords.txt",
        "gone": "nothing",
        "shadow": "hidden",
        "loop": "loop",
    }.items():
        (project / name).symlink_to(target)
    package = make_package(project, store)
    assert package.files == (
        *(".gitignore", "alias.py", "models/__init__.py", "models/model.py"),
        *("pkg/__init__.py", "pkg/model.py", "train.py"),
    )
    reasons = left_out(package)
    assert set(reasons) == {"gone", "loop", "out", "out.txt", "pkg/up", "shadow"}
    assert reasons["out"] == f"a link to {tmp_path / 'outside'}, outside of the project"
    assert reasons["pkg/up"] == "a link to a folder that it is in"
    assert reasons["gone"] == "a link to nothing"
    assert reasons["shadow"] == "a link to hidden, which is left out"
    assert b"hunter2" not in store.blob_path(package.digest).read_bytes()


def test_what_is_no_file_is_left_out_with_a_word(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(project / "pipe")
    monkeypatch.chdir(project)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert left_out(make_package(project, store)) == dict.fromkeys(
            ("pipe", "socket"), "neither a file nor a folder"
        )


def test_above_the_limit_the_largest_files_and_the_remedy_are_named(project: Path, store: Store) -> None:
    for number in range(1, 8):
        with open(project / f"w{number}.bin", "wb") as file:
            file.truncate(number * 10**7)
    with pytest.raises(UsageError) as refused:
        make_package(project, store)
    text = str(refused.value)
    assert f"the project {project} is too large for a code package: 280 MB, and 100 MB is the limit" in text
    assert [line.split()[-1] for line in text.splitlines() if "w" in line and ".bin" in line] == [
        *("w7.bin", "w6.bin", "w5.bin", "w4.bin", "w3.bin", "/w7.bin"),
    ]
    assert ".upshiftignore" in text
    fill(project, ".upshiftignore", content="*.bin\n")
    assert "train.py" in make_package(project, store).files


def test_a_huge_folder_is_refused_before_it_is_walked_through(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "FILES_AT_MOST", 50)
    fill(project, *(f"images/{number}.png" for number in range(60)))
    with pytest.raises(UsageError) as refused:
        make_package(project, store)
    text = str(refused.value)
    assert f"{project} has more than 50 files" in text
    assert "images (" in text
    assert "upshift.toml" in text
    assert ".upshiftignore" in text
    fill(project, ".gitignore", content="images/\n")
    assert "train.py" in make_package(project, store).files


def test_a_file_that_cannot_be_read_is_named(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(packages.Scan):
        def __init__(self, project: Path, exclude: Iterable[Path]) -> None:
            super().__init__(project, exclude)
            (project / "train.py").unlink()

    monkeypatch.setattr(packages, "Scan", Slow)
    with pytest.raises(UsageError) as refused:
        make_package(project, store)
    assert f"{project}/train.py cannot be read" in str(refused.value)
    assert "No such file" in str(refused.value)


class Counted:
    """How often a project was really walked over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        real = packages.Scan

        def scan(*arguments: object) -> packages.Scan:
            self.times += 1
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(packages, "Scan", scan)


def test_an_unchanged_project_is_not_packaged_again(
    project: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "SETTLED", 0)
    walks = Counted(monkeypatch)
    first = make_package(project, store)
    assert make_package(project, store) == first
    assert walks.times == 1
    other = open_store(str(tmp_path / "other"))
    assert make_package(project, other) == first
    other.check(first.digest)
    assert walks.times == 2


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename", "mode", "ignore", "deep", "same-size"])
def test_every_change_is_seen(
    change: str, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "SETTLED", 0)
    fill(project, "pkg/deep/er/x.py")
    first = make_package(project, store)
    model = project / "pkg" / "model.py"
    before = model.stat()
    {
        "edit": lambda: model.write_text("other"),
        "add": lambda: fill(project, "new.py"),
        "remove": model.unlink,
        "rename": lambda: model.rename(model.with_name("m.py")),
        "mode": lambda: model.chmod(0o755),
        "ignore": lambda: fill(project, ".gitignore", content="train.py\n.gitignore\n"),
        "deep": lambda: fill(project, "pkg/deep/er/y.py"),
        "same-size": lambda: model.write_text(model.read_text().upper()),
    }[change]()
    if change == "same-size":
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert make_package(project, store).digest != first.digest


def test_an_ignore_file_above_the_project_is_watched(
    project: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo, "SETTLED", 0)
    fill(tmp_path, ".git/HEAD")
    assert "train.py" in make_package(project, store).files
    fill(tmp_path, ".gitignore", content="train.py\n")
    assert "train.py" not in make_package(project, store).files


def test_what_changed_just_now_is_not_remembered(project: Path, store: Store, upshift_home: Path) -> None:
    make_package(project, store)
    assert not (upshift_home / "memo").exists()


def test_a_home_that_cannot_be_written_costs_time_only(
    project: Path, store: Store, upshift_home: Path
) -> None:
    upshift_home.write_text("a file in the place of the folder")
    assert make_package(project, store) == make_package(project, store)


def test_a_package_that_is_unpacked_already_is_taken_as_it_is(
    project: Path, store: Store, tmp_path: Path
) -> None:
    digest = make_package(project, store).digest
    first = unpack(digest, store, tmp_path / "code")
    inode = (first / "train.py").stat().st_ino
    assert unpack(digest, store, tmp_path / "code") == first
    assert (first / "train.py").stat().st_ino == inode
    assert sorted(path.name for path in (tmp_path / "code").iterdir() if path.name.startswith(".")) == []


def in_use(digest: str, store: Store, folder: Path) -> bool:
    """Whether a package stays as long as a process that has unpacked it lives, though no run has it."""
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(tell, b"1" if home_folders.unpacked(digest, store) == folder else b"0")
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    assert os.read(ready, 1) == b"1"
    before = tree(folder)
    kept = str(folder) not in home_folders.left_over_code((), 3600.0) and tree(folder) == before
    for descriptor in (go, ready, tell):
        os.close(descriptor)
    assert os.waitpid(pid, 0)[1] == 0
    return kept


def test_a_package_that_a_process_uses_is_not_removed(
    project: Path, store: Store, upshift_home: Path
) -> None:
    digest = make_package(project, store).digest
    folder = upshift_home / "code" / digest.partition(":")[2]
    assert in_use(digest, store, folder)
    assert list(home_folders.left_over_code((), 3600.0)) == [str(folder)]
    assert list(home_folders.left_over_code({bytes.fromhex(folder.name)}, 3600.0)) == []


def test_a_package_whose_removal_was_killed_is_unpacked_anew(
    project: Path, store: Store, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = make_package(project, store).digest
    folder = unpack(digest, store, upshift_home / "code")
    whole = tree(folder)

    def killed(path: str) -> None:
        os.unlink(Path(path) / "train.py")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(home_folders, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            home_folders.remove_code(str(folder))
    assert tree(unpack(digest, store, upshift_home / "code")) == whole
    (half,) = home_folders.left_over_code({bytes.fromhex(folder.name)}, -1.0)
    assert Path(half).name.startswith(".")
    home_folders.remove_code(half)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_packages_are_unpacked_beside_each_other(project: Path, store: Store, tmp_path: Path) -> None:
    before = make_package(project, store).digest
    (project / "train.py").write_text("changed = True\n")
    after = make_package(project, store).digest
    first, second = (unpack(digest, store, tmp_path / "code") for digest in (before, after))
    assert (first / "train.py").read_text() != (second / "train.py").read_text() == "changed = True\n"


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good.py"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    return content.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        hostile("../evil.py"),
        hostile("a/../../evil.py"),
        hostile("/tmp/evil.py"),
        hostile("link", tarfile.SYMTYPE, "/etc"),
        hostile("link", tarfile.LNKTYPE, "good.py"),
        hostile("device", tarfile.CHRTYPE),
        hostile("pipe", tarfile.FIFOTYPE),
        hostile("."),
    ],
)
def test_hostile_packages_are_refused_and_nothing_is_unpacked(
    archive: bytes, store: Store, tmp_path: Path
) -> None:
    digest, _ = store.put(archive)
    with pytest.raises(StoreError, match="which Upshift never puts there"):
        unpack(digest, store, tmp_path / "deep" / "code")
    assert list((tmp_path / "deep" / "code").iterdir()) == []


def test_what_is_no_package_is_refused(store: Store, tmp_path: Path) -> None:
    digest, _ = store.put(b"something else" * 100)
    with pytest.raises(StoreError, match="is not a code package"):
        unpack(digest, store, tmp_path / "code")
    with pytest.raises(BlobMissing):
        unpack("sha256:" + "0" * 64, store, tmp_path / "code")


def test_a_destination_that_cannot_be_made_is_named(project: Path, store: Store, tmp_path: Path) -> None:
    digest = make_package(project, store).digest
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=f"cannot be unpacked into {tmp_path}/file/code"):
        unpack(digest, store, tmp_path / "file" / "code")
