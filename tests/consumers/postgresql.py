#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The extension of PostgreSQL, in a server of its own: pg_regress, the SQL of the guide, crashes, and what they leave.

BUILD_ROOT is a build of Meson, or a folder into which one was installed with DESTDIR. --backend cuda needs a GPU, or the fake
driver by --driver. --measure only times how long a new backend takes to attach to a column.
"""

import argparse
import os
import pwd
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from consumers import install, run
from tap import Failed, Skipped, Tap, require

EXTENSION = Path("adapters") / "postgresql"
PATIENCE = 120  # seconds until something counts as hung


def find_pg_config():
    if not shutil.which("make"):
        raise Skipped("make is not installed")
    for program in ("/usr/lib/postgresql/15/bin/pg_config", "pg_config"):
        if shutil.which(program) and " 15." in run(program, "--version"):
            folders = {name: Path(run(program, f"--{name}").strip())
                       for name in ("bindir", "pkglibdir", "sharedir", "includedir-server", "pgxs")}
            if (folders["includedir-server"] / "postgres.h").exists() and (folders["bindir"] / "postgres").exists():
                return program, folders
    raise Skipped("PostgreSQL 15 with the headers of its server is not installed: postgresql-15, postgresql-server-dev-15")


def wait_for(what, happens):
    """Until `happens()` is true."""
    end = time.monotonic() + PATIENCE
    while not happens():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not in {PATIENCE} seconds")
        time.sleep(0.01)


def descriptors(pid):
    return sorted(os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])


class Home:
    """A folder with a PostgreSQL that has the extension. Its programs find all else beside themselves, so that nothing of
    the system changes; they run as a user without rights, because they refuse root."""

    def __init__(self, folder, source, installed, pg_config, folders, backend, driver):
        self.folder, self.system, self.backend = folder, folders, backend
        self.folder.chmod(0o755)
        root = folder / "root"
        self.bin = root / str(folders["bindir"])[1:]
        for name in ("bindir", "pkglibdir", "sharedir"):
            (root / str(folders[name])[1:]).mkdir(parents=True)
        for program in ("postgres", "initdb"):
            shutil.copy2(folders["bindir"] / program, self.bin)
        for above in (folders["pkglibdir"], folders["sharedir"], folders["sharedir"] / "extension"):
            here = root / str(above)[1:]
            here.mkdir(exist_ok=True)
            for path in above.iterdir():
                if path.name != "extension":
                    (here / path.name).symlink_to(path)
        self.library = folder / "lib"
        self.library.mkdir()
        (library,) = installed.rglob("libgpumem.so.0")
        shutil.copy(library.resolve(), self.library / library.name)
        (program,) = installed.rglob("bin/gpumem")
        shutil.copy(program, folder)

        shutil.copytree(source / EXTENSION, folder / "extension")
        (pc,) = installed.rglob("gpumem.pc")
        said = run("make", "-C", folder / "extension", "install", "with_llvm=no", f"PG_CONFIG={pg_config}", f"DESTDIR={root}",
                   "COPT=-Werror", PKG_CONFIG_LIBDIR=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=str(installed))
        self.warnings = [line for line in said.splitlines() if "warning" in line]

        self.as_user = {}
        for name in ("data", "s", "out"):
            (folder / name).mkdir(mode=0o700)
        if os.geteuid() == 0:
            known = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = known.get("postgres", known.get("nobody"))
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for name in ("data", "s", "out"):
                os.chown(folder / name, user.pw_uid, user.pw_gid)
        self.report = folder / "out" / "violations"  # of the fake driver
        self.env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder / "out"), "LD_LIBRARY_PATH": str(self.library),
                    "PGHOST": str(folder / "s"), "PGUSER": "postgres", "PGDATABASE": "postgres"}
        if driver:
            self.env |= {"LD_LIBRARY_PATH": f"{self.library}:{driver}", "FAKE_CUDA_REPORT": str(self.report)}
        self.run(self.bin / "initdb", "-D", folder / "data", "--no-sync", "-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8")

    def start(self, *command, **options):
        return subprocess.Popen([str(word) for word in command], cwd=self.folder / "out",
                                **{"text": True, "env": self.env, **self.as_user, **options})

    def run(self, *command):
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{said}exit status {process.returncode}")
        return said


class Server:
    def __init__(self, home, env=(), **settings):
        self.home = home
        self.log = open(home.folder / "out" / "log", "ab")
        words = {"shared_preload_libraries": "gpumem_pg", "gpumem.backend": home.backend, "listen_addresses": "",
                 "unix_socket_directories": home.folder / "s", "fsync": "off", "jit": "off", "max_connections": "30",
                 "autovacuum": "off", "dynamic_shared_memory_type": "mmap", **settings}
        self.process = home.start(home.bin / "postgres", "-D", home.folder / "data",
                                  *(f"--{name}={value}" for name, value in words.items()),
                                  stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**home.env, **dict(env)})
        self.wait()

    def wait(self):
        """Until it takes connections, as after a start or a crash."""
        def ready():
            if self.process.poll() is not None:
                raise RuntimeError("the server has ended:\n" + self.said())
            return self.home.start("psql", "-XAtqc", "SELECT 1", stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL).wait() == 0

        wait_for("the server takes connections", ready)

    def worker(self):
        """The process of the hub, which is no session that pg_stat_activity would list."""
        (found,) = (int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")
                    if parent_of(path.parent.name) == self.process.pid and b"gpumem hub" in path.read_bytes())
        return found

    def said(self):
        return (self.home.folder / "out" / "log").read_text(encoding="utf-8", errors="replace")

    def sql(self, text, database="postgres"):
        return self.home.run("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", text).strip()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()


class Backend:
    """A session in which statements are given one by one."""

    def __init__(self, server, database="postgres"):
        self.server = server
        self.psql = server.home.start("psql", "-XAtq", "-d", database, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
        self.pid = int(self.sql("SELECT pg_backend_pid()"))
        # From here on the number is that process, or nobody.
        self.handle = os.pidfd_open(self.pid)
        if parent_of(self.pid) != server.process.pid:
            raise RuntimeError(f"process {self.pid} is no child of the server")

    def begin(self, text):
        self.psql.stdin.write(text)
        self.psql.stdin.flush()

    def sql(self, text):
        self.begin(f"{text};\n\\echo ==\n")
        lines = []
        for line in self.psql.stdout:
            if line == "==\n":
                return "".join(lines).strip()
            lines.append(line)
        raise RuntimeError(f"the session has ended: {''.join(lines)}")

    def kill(self):
        signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self):
        os.close(self.handle)
        try:
            self.psql.stdin.close()
        except BrokenPipeError:
            pass
        self.psql.stdout.read()
        self.psql.stdout.close()
        self.psql.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


class Keeper:
    def __init__(self, home):
        self.path = home.folder / "s" / "keeper"
        self.process = home.start(home.folder / "gpumem", "keep", "--hub", self.path, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # it says where it is
        self.home = home

    def names(self):
        said = self.home.run(self.home.folder / "gpumem", "hub", "--hub", self.path, "list")
        return re.findall(r"\b\d+\.\w+", said)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.stdout.close()
        self.process.wait(PATIENCE)


TABLES = """
CREATE EXTENSION gpumem_pg;
CREATE TABLE numbers (small smallint, whole integer, big bigint, r real, d double precision);
INSERT INTO numbers SELECT i % 1000, CASE WHEN i % 7 <> 0 THEN i END, i::bigint << 33, i / 8.0, i / 1000.0
  FROM generate_series(1, 70000) i;
"""


def loads(names):
    return "SELECT " + ", ".join(f"gpumem.load('{name}', 'numbers', '{column}')" for name, column in names.items())


KEPT = {f"kept_{column}": column for column in ("small", "whole", "big", "r", "d")}


def differences(server):
    """What differs between the columns that are there and their table, which nobody changes."""
    lines = server.sql("""
        SELECT DISTINCT ON (name) name, "column", count(*) OVER (PARTITION BY name) FROM gpumem.columns()
        ORDER BY name, version DESC""").splitlines()
    problems = []
    for name, column, versions in (line.split("|") for line in lines):
        answer = server.sql(f"""
            SELECT abs(gpumem.sum('{name}') - sum({column}::numeric)) <= 1e-9 * abs(sum({column}::numeric)),
              count(*) FILTER (WHERE {column} > 50) = (SELECT count(*) FROM gpumem.filter('{name}', '>', 50)),
              sum(hashtid(ctid)) FILTER (WHERE {column} > 50) = (SELECT sum(hashtid(f)) FROM gpumem.filter('{name}', '>', 50) f)
            FROM numbers""")
        if answer != "t|t|t":
            problems.append(f"{name} of {column}: {answer}")
        # A backend that is killed between publishing and withdrawing leaves the old version, until the next load.
        if int(versions) > 2:
            problems.append(f"{name} has {versions} versions")
    return problems


def regress(tap, home):
    """Each file of the suite of pg_regress is a case."""
    program = home.system["pgxs"].parent.parent / "test" / "regress" / "pg_regress"
    names = re.search(r"^REGRESS = (.*)$", (home.folder / "extension" / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    with Server(home):
        process = home.start(program, f"--bindir={home.system['bindir']}", f"--inputdir={home.folder / 'extension'}",
                             f"--outputdir={home.folder / 'out'}", f"--host={home.folder / 's'}", "--user=postgres",
                             "--dbname=regression", *names, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate()[0]
    path = home.folder / "out" / "regression.diffs"
    different = path.read_text(encoding="utf-8") if path.exists() else said
    for name in names:
        good = re.search(rf"^test {name} +\.\.\. ok", said, re.MULTILINE)
        part = re.search(rf"^diff [^\n]*/{name}\.out\n.*?(?=^diff |\Z)", different, re.DOTALL | re.MULTILINE)
        tap.check(f"pg_regress {name}", [] if good else part[0] if part else said)


def guide(home, source):
    """The blocks of SQL in the guide are one session, in a database of its own."""
    text = (source / "docs" / "postgresql.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    path = home.folder / "guide.sql"
    path.write_text("".join(blocks), encoding="utf-8")
    with Server(home) as server:
        server.sql("CREATE DATABASE guide")
        said = home.run("psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", "guide", "-f", path)
    require(blocks and "gpumem" in path.read_text(encoding="utf-8"), f"there is no SQL: {said}")


def refused(server, text, expected):
    try:
        answer = server.sql(text)
    except RuntimeError as problem:
        require(expected in str(problem), f"{text}: {problem}")
        return
    raise Failed(f"{text}: {answer}")


def not_preloaded(home):
    with Server(home, shared_preload_libraries="") as server:
        server.sql("CREATE DATABASE bare")
        try:
            server.sql("CREATE EXTENSION gpumem_pg", "bare")
        except RuntimeError as problem:
            require("Add gpumem_pg to shared_preload_libraries" in str(problem), str(problem))
            return
    raise Failed("it was created")


def no_such_device(home):
    with Server(home, **{"gpumem.device": "99"}) as server:
        refused(server, "SELECT gpumem.load('x', 'numbers', 'whole')", "cannot use the device of gpumem.device: ")


def no_driver(home):
    """With a driver that finds no device. A server without a driver goes on, and `auto` takes the host backend."""
    env = {"FAKE_CUDA_INIT": "100", "CUDA_VISIBLE_DEVICES": "-1"}
    with Server(home, env) as server:
        for text in (loads({"x": "whole"}), "SELECT gpumem.sum('x')", "SELECT gpumem.columns()"):
            refused(server, text, "cannot open the backend of gpumem: cannot initialize the CUDA driver: there is no usable device")
        require(server.sql("SELECT count(*) FROM numbers") == "70000", "the table cannot be read")
    with Server(home, env, **{"gpumem.backend": "auto"}) as server:
        server.sql(loads(KEPT))
        answer = server.sql("SELECT DISTINCT place FROM gpumem.columns()")
        require(answer == "host:0" and not differences(server), f"auto: {answer}")


def other_backend(home):
    """A keeper has columns from before gpumem.backend was changed."""
    with Keeper(home) as keeper:
        def place():
            return server.sql("SELECT place FROM gpumem.columns()")

        for before, now in (("host", "cuda"), ("cuda", "host")):
            with Server(home, **{"gpumem.keeper": keeper.path, "gpumem.backend": before}) as server:
                server.sql(loads({"x": "whole"}))
                require(place() == f"{before}:0", f"loaded to {place()}")
            with Server(home, **{"gpumem.keeper": keeper.path, "gpumem.backend": now}) as server:
                refused(server, "SELECT gpumem.sum('x')", f'"x" is in memory of the {before} backend, and this session uses the {now} backend')
                server.sql(loads({"x": "whole"}))
                require(place() == f"{now}:0" and not differences(server), f"loaded again to {place()}")
                server.sql("SELECT gpumem.drop('x')")


def other_device(home):
    """A keeper has columns from before gpumem.device was changed, and from before the device was taken away."""
    many, one = {"FAKE_CUDA_DEVICES": "2"}, {"FAKE_CUDA_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    with Keeper(home) as keeper:
        with Server(home, many, **{"gpumem.keeper": keeper.path, "gpumem.device": "1"}) as server:
            try:
                server.sql(loads(KEPT))
            except RuntimeError as problem:
                require("cannot use the device of gpumem.device: " in str(problem), str(problem))
                raise Skipped("there is one device") from problem
        with Server(home, many, **{"gpumem.keeper": keeper.path}) as server:
            server.sql("SELECT gpumem.load('kept_d', 'numbers', 'd')")
            require(not differences(server), "on two devices")
            places = server.sql("SELECT name, place FROM gpumem.columns() WHERE name IN ('kept_d', 'kept_r') ORDER BY name").split()
            require(places == [f"kept_d|{home.backend}:0", f"kept_r|{home.backend}:1"], f"they are at {places}")
        with Server(home, one, **{"gpumem.keeper": keeper.path}) as server:
            refused(server, "SELECT gpumem.sum('kept_r')", "cannot import the column: this instance does not see the device that has it")
            server.sql(loads(KEPT))
            require(not differences(server), "loaded again")


def denied(home, fake):
    """A device whose memory cannot be shared, and one that another process has for itself by its compute mode."""
    if not fake:
        raise Skipped("it takes a driver that denies it")
    with Server(home, {"FAKE_CUDA_ATTRIBUTE_103": "0"}) as server:
        refused(server, loads({"x": "whole"}), "device 0 does not support this (vmm.handle_posix_fd is NO)")
    with Server(home, {"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain:1:always:CUDA_ERROR_DEVICE_UNAVAILABLE"}) as server:
        refused(server, loads({"x": "whole"}), "cannot retain the primary context of device 0: it is in use by other work")


def too_large(home, fake):
    if not fake:
        raise Skipped("it would fill a whole GPU")
    with Server(home, {"FAKE_CUDA_MEMORY": "4194304"}) as server:
        server.sql("CREATE TABLE large AS SELECT i FROM generate_series(1, 500000) i")
        refused(server, "SELECT gpumem.load('large', 'large', 'i')", "the device is out of memory")
        server.sql(loads({"x": "whole"}))
        require(not differences(server), "a smaller one")


def two_transactions(home):
    """Who loads a name second waits for the first, and reads what it has committed."""
    with Server(home) as server, Backend(server) as first, Backend(server) as second:
        second.sql("CREATE TABLE grows AS SELECT 1 AS i")
        second.sql("SELECT gpumem.load('grows', 'grows', 'i')")
        first.sql("BEGIN; INSERT INTO grows VALUES (2)")
        first.sql("SELECT gpumem.load('grows', 'grows', 'i')")
        answers = [first.sql("SELECT gpumem.sum('grows')"), second.sql("SELECT gpumem.sum('grows')")]
        require(answers == ["3", "1"], f"before the commit: {answers}")
        second.begin("SELECT gpumem.load('grows', 'grows', 'i');\n")
        wait_for("the second load waits", lambda: server.sql(
            f"SELECT count(*) FROM pg_locks WHERE pid = {second.pid} AND locktype = 'advisory' AND NOT granted") == "1")
        first.sql("COMMIT")
        answers = [second.sql("SELECT gpumem.sum('grows')"), server.sql("SELECT count(*) FROM gpumem.columns()")]
        require(answers == ["2\n3", "1"], f"after the commit: {answers}")
        second.sql("SELECT gpumem.drop('grows')")


def reader_and_writer(home):
    """Who reads a name while it is replaced again and again always gets one of its versions."""
    with Server(home) as server, Backend(server) as reader, Backend(server) as writer:
        writer.sql(loads({"x": "whole"}))
        expected = reader.sql("SELECT gpumem.sum('x')")
        writer.begin("".join(f"{loads({'x': 'whole'})};\n" for _ in range(60)))
        found = set()
        for _ in range(60):
            found.add(reader.sql("SELECT gpumem.sum('x'); SELECT count(*) FROM gpumem.filter('x', '=', 1)"))
        require(found == {f"{expected}\n1"}, f"not only {expected}: {found}")
        answers = set(writer.sql("SELECT gpumem.drop('x')").split())
        require(answers == {"70000"}, f"the loads: {answers}")


def worker_ends(home):
    """Without a keeper the columns end with the server, and with its worker, which the postmaster starts again."""
    with Server(home) as server, Backend(server) as backend:
        backend.sql(loads(KEPT))
        with os.fdopen(os.pidfd_open(server.worker())) as worker:
            signal.pidfd_send_signal(worker.fileno(), signal.SIGTERM)
        wait_for("a new hub has no columns", lambda: backend.sql("SELECT count(*) FROM gpumem.columns()") == "0")
        backend.sql(loads(KEPT))
        require(not differences(server), "after the worker began again")
        chance = random.Random(1)
        crash(server, chance)
        require(server.sql("SELECT count(*) FROM gpumem.columns() WHERE name LIKE 'kept%'") == "0", "the old hub lives")
        server.sql(loads(KEPT))
        require(not differences(server), "after the crash")
    require(not (home.folder / "data" / "gpumem.hub").exists(), "the socket of the hub is left")


def one_session(home):
    """What a session does over and over costs it nothing that stays."""
    with Server(home) as server, Backend(server) as backend:
        def round_of_work():
            backend.sql(loads(KEPT))
            backend.sql("SELECT gpumem.sum(name) FROM gpumem.columns()")
            backend.sql("SELECT count(*) FROM gpumem.filter('kept_big', '>', 50)")
            backend.sql("BEGIN; SELECT gpumem.load('kept_d', 'numbers', 'd'); SELECT 1 / 0; COMMIT")
            backend.sql("SELECT gpumem.filter('kept_big', '>', 1.5)")
            backend.sql("SELECT gpumem.drop(name) FROM gpumem.columns()")
            maps = Path(f"/proc/{backend.pid}/maps").read_text(encoding="utf-8")
            return len(descriptors(backend.pid)), maps.count("memfd:")

        round_of_work()
        before = round_of_work()
        for _ in range(10):
            round_of_work()
        # What another process lets go is heard of a little later.
        wait_for(f"descriptors and mappings as before, {before}", lambda: round_of_work() <= before)


def signals(home):
    """Handlers of signals change variables of the backend, so no other thread may run them."""
    with Server(home) as server, Backend(server) as loads_first, Backend(server) as reads_first:
        loads_first.sql(loads({"x": "whole"}))
        reads_first.sql("SELECT gpumem.sum('x')")
        loads_first.sql("SELECT gpumem.drop('x')")
        for backend in (loads_first, reads_first):
            for thread in Path(f"/proc/{backend.pid}/task").iterdir():
                try:
                    status = (thread / "status").read_text(encoding="utf-8")
                except (FileNotFoundError, ProcessLookupError):  # it has ended
                    continue
                (blocked,) = re.findall(r"^SigBlk:\t(\w+)$", status, re.MULTILINE)
                taken = [number.name for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
                         if not int(blocked, 16) >> number - 1 & 1]
                require(bool(taken) == (thread.name == str(backend.pid)), f"thread {thread.name} of {backend.pid} takes {taken}")


def wrong_hubs(home):
    path = home.folder / "s" / "keeper"
    with Server(home, **{"gpumem.keeper": path}) as server, Backend(server) as backend:
        refused(server, "SELECT gpumem.sum('x')", "cannot connect to the keeper of gpumem.keeper: ")
        database = server.sql("SELECT oid FROM pg_database WHERE datname = current_database()")
        (home.folder / "file").write_bytes(bytes(4096))
        with Keeper(home) as keeper:
            home.run(home.folder / "gpumem", "share", home.folder / "file", "--name", f"{database}.x", "--keep", keeper.path,
                     "--backend", "host")
            for text in ("SELECT gpumem.sum('x')", "SELECT gpumem.load('x', 'numbers', 'whole')", "SELECT gpumem.drop('x')"):
                refused(server, text, "is not of this cluster")
            require(backend.sql("SELECT count(*) FROM gpumem.columns()") == "0", "a column of others is listed")
            backend.sql("BEGIN; CREATE TABLE not_yet (); SELECT gpumem.load('kept_d', 'numbers', 'd')")
        # What cannot be published is not committed.
        said = backend.sql("COMMIT")
        require("ERROR" in said and backend.sql("SELECT to_regclass('not_yet')") == "", f"the commit: {said}")
        # A session outlives its keeper, and connects to the next one.
        said = backend.sql("SELECT gpumem.sum('kept_d')")
        require("ERROR" in said, said)
        share = home.start(home.folder / "gpumem", "share", home.folder / "file", "--name", "x", "--hub", path, "--backend", "host",
                           "--wait-stdin", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        share.stdout.readline()
        refused(server, "SELECT gpumem.sum('x')", "is no keeper")
        share.stdin.close()
        share.wait(PATIENCE)
        share.stdout.close()
        with Keeper(home):
            require(backend.sql("SELECT gpumem.load('kept_d', 'numbers', 'd')") == "70000", "it does not load again")


def statements(chance, number):
    """What a backend does while it or another one is killed."""
    own, shared = f"own{number}", f"shared{chance.randrange(3)}"
    column = chance.choice(list(KEPT.values()))
    return chance.choice([
        f"SELECT gpumem.load('{shared}', 'numbers', '{column}')",
        f"BEGIN; SELECT gpumem.load('{own}', 'numbers', '{column}'); SELECT gpumem.sum('{own}'); COMMIT",
        f"BEGIN; SELECT gpumem.load('{own}', 'numbers', '{column}'); ROLLBACK",
        f"SELECT gpumem.sum('{shared}')",
        "SELECT gpumem.sum('kept_big')",
        f"SELECT count(*) FROM gpumem.filter('kept_d', '<', {chance.randrange(70)})",
        f"SELECT gpumem.drop('{chance.choice([own, shared])}')",
    ])


def crash(server, chance):
    """Backends work at random, until one of them is killed at a random moment and the server restarts all."""
    before = server.said().count("reinitializing")
    backends = [Backend(server) for _ in range(3)]
    victim = chance.choice(backends)
    for number, backend in enumerate(backends):
        # Enough for the whole time, all at once. What is said, in short, fits into the pipe.
        backend.begin("\\set VERBOSITY sqlstate\n" + "".join(f"{statements(chance, number)};\n" for _ in range(200)))
    for _ in range(chance.randrange(1, 30)):
        victim.psql.stdout.readline()
    time.sleep(chance.random() * 0.05)  # not only when something has been said
    victim.kill()
    for backend in backends:
        backend.close()
    wait_for("the server restarts", lambda: server.said().count("reinitializing") > before)
    server.wait()


def kept_over_crashes(home, seed):
    chance = random.Random(seed)
    with Keeper(home) as keeper:
        def keeper_holds():
            return descriptors(keeper.process.pid)

        unused = keeper_holds()
        with Server(home, **{"gpumem.keeper": keeper.path}) as server:
            server.sql(loads(KEPT))
            server.sql("SELECT gpumem.drop(name) FROM gpumem.columns()")
            # What it opens at its first use only.
            wait_for("the session has left the keeper", lambda: set(keeper_holds()) <= set(unused))
            before = keeper_holds()
            server.sql(loads(KEPT))
            for number in range(5):
                crash(server, chance)
                there = set(server.sql("SELECT name FROM gpumem.columns()").split())
                require(there >= set(KEPT), f"after crash {number}: only {there} are there")
                problems = differences(server)
                require(not problems, f"after crash {number}: {problems}")
            key = (home.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()[6].split()
        # They outlive the server too.
        with Server(home, **{"gpumem.keeper": keeper.path}) as server:
            require(not differences(server), "after a restart")
            server.sql("SELECT gpumem.drop(name) FROM (SELECT DISTINCT name FROM gpumem.columns()) names")
        left = [str(path) for folder in ("pg_dynshmem", "base/pgsql_tmp") for path in (home.folder / "data" / folder).glob("*")]
        require(not left, f"files are left: {left}")
        segments = [line.split()[:2] for line in Path("/proc/sysvipc/shm").read_text(encoding="utf-8").splitlines()]
        require(key not in segments, f"the shared memory {key} is left")
        require(not keeper.names(), f"names are left in the keeper: {keeper.names()}")
        wait_for(f"the keeper has the descriptors from before, {before}, not {keeper_holds()}", lambda: keeper_holds() == before)


def measure(tap, home, rounds):
    """How long new backends take to attach to a column, at first and again."""
    with Keeper(home) as keeper, Server(home, **{"gpumem.keeper": keeper.path}) as server:
        server.sql(loads({"kept_d": "d"}))
        times = ([], [])
        for _ in range(rounds):
            lines = server.sql("SELECT * FROM gpumem.attach_times('kept_d'); SELECT * FROM gpumem.attach_times('kept_d')").splitlines()
            for which, part in zip(times, (lines[:5], lines[5:])):
                which.append({step: float(time) for step, time in (line.split("|") for line in part)})
        server.sql("SELECT gpumem.drop('kept_d')")

    def spread(values):
        """Median, and the 10th percentile, which other work on the machine hardly changes."""
        values = sorted(values)
        return f"{statistics.median(values):.0f} ({values[len(values) // 10]:.0f})"

    for name, taken in zip(("attaches for the first time", "attaches again"), times):
        steps = ", ".join(f"{step} {spread(time[step] for time in taken)}" for step in taken[0])
        tap.measured(f"a new backend {name}, median (10th percentile) of {rounds} in us: {steps}; all but the import "
                     f"{spread(sum(time.values()) - time['import'] for time in taken)}, of which find and fetch "
                     f"{spread(time['find'] + time['fetch'] for time in taken)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE_ROOT")
    parser.add_argument("build", type=Path, metavar="BUILD_ROOT")
    parser.add_argument("--backend", choices=["host", "cuda"], default="host", help="where the columns are")
    parser.add_argument("--driver", type=Path, metavar="FOLDER", help="folder of the fake driver, for --backend cuda")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    source, build = options.source, options.build
    # Stops the server, too, when its time is over.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    tap = Tap()
    seed = int(os.environ.get("GPUMEM_SEED", random.randrange(1 << 32)))

    def case(name, function, *arguments):
        try:
            function(*arguments)
            tap.check(name, [])
        except Skipped as reason:
            tap.skip(name, reason)
        except (Failed, RuntimeError, OSError, ValueError) as problem:
            tap.check(name, f"{type(problem).__name__}: {problem}")

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        try:
            pg_config, folders = find_pg_config()
        except Skipped as reason:
            tap.skip("the extension of PostgreSQL", reason)
            tap.finish()
        installed = install(build, folder / "installed") if (build / "build.ninja").exists() else build
        home = Home(folder, source, installed, pg_config, folders, options.backend, options.driver)
        tap.check("the extension is built without a warning", home.warnings)
        if options.measure:
            with Server(home) as server:
                server.sql(TABLES)
            measure(tap, home, 200)
            tap.finish()
        regress(tap, home)
        case("the SQL of the guide runs", guide, home, source)
        case("it must be loaded when the server starts", not_preloaded, home)
        with Server(home) as server:
            server.sql(TABLES)
        case("a device that is not there", no_such_device, home)
        if options.backend == "cuda":
            case("a device whose memory cannot be shared, and one that is in use", denied, home, options.driver)
            case("a table that is too large for the device", too_large, home, options.driver)
            case("a keeper has columns of another device", other_device, home)
            case("no device for the driver", no_driver, home)
            case("a keeper has columns of the other backend", other_backend, home)
        case("one name, two transactions", two_transactions, home)
        case("a reader beside a writer", reader_and_writer, home)
        case("the worker ends, and the server crashes, without a keeper", worker_ends, home)
        case("a session leaks nothing", one_session, home)
        case("signals are handled by the thread of the backend alone", signals, home)
        case("what is no keeper, is not there, or has columns of others", wrong_hubs, home)
        case(f"a keeper has the columns after each crash, and nothing is left, seed {seed}", kept_over_crashes, home, seed)
        measure(tap, home, 5)
        if options.driver:
            tap.check("nothing is done that a driver forbids",
                      home.report.read_text(encoding="utf-8") if home.report.exists() else [])
    tap.finish()


if __name__ == "__main__":
    main()
