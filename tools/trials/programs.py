"""Programs that misbehave before their first training step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from .base import Arena, Outcome, Trial, execute

# Trains two towers without a mistake, if it is called.
MODEL = """
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def train(gpus=2):
    with tf.Graph().as_default():
        gradients, inputs = [], []
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        with tf.device("/cpu:0"):
            w = tf1.get_variable("w", [3, 1])
        for gpu in range(gpus):
            with tf.device(f"/gpu:{gpu}"), tf.name_scope(f"tower_{gpu}"):
                x = tf1.placeholder(tf.float32, [4, 3], name="x")
                inputs.append(x)
                loss = tf.reduce_mean(tf.square(x @ w - 1.0))
                gradients.append(optimizer.compute_gradients(loss, [w])[0][0])
        with tf.device("/cpu:0"):
            step = optimizer.apply_gradients([(tf.add_n(gradients) / gpus, w)])
        with tf1.Session(config=tf1.ConfigProto(allow_soft_placement=True)) as session:
            session.run(tf1.global_variables_initializer())
            rows = np.arange(12 * gpus, dtype=np.float32).reshape(gpus, 4, 3)
            session.run(step, dict(zip(inputs, rows)))
"""
RULE = ("--rule", "variables-on-host")

# Programs that reach their step: the code before it.
SOUND = {
    "nothing": "",
    "deletes everything": """
        for name in os.listdir():
            if name not in ("train.py", "model.py"):
                is_directory = os.path.isdir(name) and not os.path.islink(name)
                (shutil.rmtree if is_directory else os.remove)(name)
    """,
    "empties its temporary directory": """
        os.remove("notes.txt")
        open("logs/model.ckpt", "w").close()
        for name in os.listdir(tempfile.gettempdir()):
            path = os.path.join(tempfile.gettempdir(), name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    """,
    "deletes its temporary directory": """
        shutil.rmtree("logs")
        shutil.rmtree(tempfile.gettempdir())
    """,
    "empties the parent of its temporary directory": """
        os.remove("notes.txt")
        top = os.path.dirname(tempfile.gettempdir())
        for name in os.listdir(top):
            shutil.rmtree(os.path.join(top, name), ignore_errors=True)
    """,
    "empties the parent of its temporary directory with rm": """
        os.remove("notes.txt")
        subprocess.run(["sh", "-c", f"rm -rf {os.path.dirname(tempfile.gettempdir())}/*"])
    """,
    "os.open with O_TRUNC": "os.close(os.open('notes.txt', os.O_WRONLY | os.O_TRUNC))",
    "os.truncate": "os.truncate('notes.txt', 0)",
    "truncates after opening to append": "open('notes.txt', 'a+').truncate(0)",
    "FileIO": "io.FileIO('notes.txt', 'w').write(b'x')",
    "tarfile": "tarfile.open('notes.txt', 'w').close()",
    "zipfile": "zipfile.ZipFile('notes.txt', 'w').close()",
    "bz2": "bz2.open('notes.txt', 'w').close()",
    "lzma": "lzma.open('notes.txt', 'w').close()",
    "numpy.save": "np.save(open('notes.txt', 'wb'), np.ones(3))",
    "numpy.memmap": "np.memmap('notes.txt', np.uint8, 'r+').fill(0)",
    "mmap": """
        with open("notes.txt", "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            content[0] = 0
    """,
    "sqlite": """
        database = sqlite3.connect("data.db")
        database.execute("create table t (x)")
        database.commit()
    """,
    "replaces a file atomically": """
        open("notes.tmp", "w").write("new")
        os.replace("notes.tmp", "notes.txt")
    """,
    "moves a directory": "shutil.move('logs', 'empty')",
    "writes through a hard link": """
        os.link("notes.txt", "new.txt")
        open("new.txt", "w").write("x")
        os.remove("new.txt")
        open("linked.txt", "a").write("x")
    """,
    "writes through a symbolic link": "open('link/model.ckpt', 'w').write('x')",
    "changes modes and times": """
        os.chmod("notes.txt", 0o600)
        os.utime("logs/model.ckpt")
        os.chmod("logs", 0o700)
    """,
    "changes the working directory": """
        os.chdir("logs")
        open("model.ckpt", "w").write("x")
        shutil.rmtree("../logs/old")
    """,
    "deletes its working directory": """
        os.mkdir("here")
        os.chdir("here")
        os.rmdir("../here")
    """,
    "uses descriptors of directories": """
        folder = os.open("logs", os.O_RDONLY)
        os.close(os.open("model.ckpt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder))
        os.unlink("model.ckpt", dir_fd=folder)
    """,
    "closes all descriptors": """
        os.closerange(3, 1024)
        files = [open(f"new{number}", "w") for number in range(40)]
    """,
    "closes all descriptors, and changes files": """
        os.closerange(3, 1024)
        files = [open(f"new{number}", "w") for number in range(40)]
        os.remove("notes.txt")
        shutil.rmtree("logs")
    """,
    "closes its streams": """
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()
        files = [open(f"new{number}", "w") for number in range(5)]
    """,
    "uses up all descriptors": """
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        files = []
        try:
            while True:
                files.append(open("notes.txt"))
        except OSError:
            del files[:30]
    """,
    "limits the size of files": """
        os.remove("notes.txt")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    """,
    "starts a daemon": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
    """,
    "starts a session": "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "starts a process group": "subprocess.Popen(['sleep', '1000'], process_group=0)",
    "starts a daemon that writes": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 1024)
                while True:
                    open("notes.txt", "w").write("x")
                    shutil.rmtree("logs", ignore_errors=True)
            os._exit(0)
        while open("notes.txt").read() == "notes":
            time.sleep(0.01)
    """,
    "starts many processes": """
        for _ in range(50):
            if os.fork() == 0:
                os.setsid()
                time.sleep(1000)
    """,
    "starts a shell in the background": "os.system('(setsid sleep 1000 &) &')",
    "uses multiprocessing": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(os.path.basename, ["a", "b"])
    """,
    "changes files in a fork": """
        if os.fork() == 0:
            open("notes.txt", "w").write("x")
            shutil.rmtree("logs")
            os._exit(0)
        os.wait()
    """,
    "changes files in threads": """
        threads = [
            threading.Thread(target=lambda: open("notes.txt", "w").write("x")) for _ in range(20)
        ]
        for thread in threads:
            thread.start()
    """,
    "changes files in a signal handler": """
        signal.signal(signal.SIGALRM, lambda *_: open("logs/model.ckpt", "w").write("x"))
        for number in range(100):
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (number + 1))
            open("notes.txt", "w").write("x")
    """,
    "goes on writing in a thread": """
        def write():
            while True:
                open("notes.txt", "w").write("x")
                open("logs/model.ckpt", "a").write("x")
        threading.Thread(target=write, daemon=True).start()
        time.sleep(0.5)
    """,
    "ignores signals": """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    """,
    "blocks signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))",
    "clears the environment": "os.environ.clear()",
    "replaces open": """
        import builtins
        builtins.open = None
    """,
    "replaces functions of os": """
        original = os.remove
        os.remove = lambda *_: original("notes.txt")
        os.remove("x")
    """,
    "writes to all descriptors": """
        for number in range(3, 100):
            try:
                os.write(number, b"garbage")
            except OSError:
                pass
    """,
    "prints much": """
        for _ in range(20000):
            print("x" * 100)
    """,
    "restricts its temporary directory": """
        path = tempfile.mkdtemp()
        os.mkdir(path + "/a")
        os.chmod(path + "/a", 0)
        os.chmod(path, 0)
    """,
    "an audit hook that raises": """
        def hook(event, args):
            if event == "os.link":
                raise RuntimeError("not allowed")
        sys.addaudithook(hook)
        try:
            os.remove("notes.txt")
        except Exception:
            pass
    """,
    "gfile": """
        tf.io.gfile.rmtree("logs")
        tf.io.gfile.GFile("notes.txt", "w").write("x")
    """,
    "a record writer": "tf.io.TFRecordWriter('notes.txt').close()",
    "write_file": """
        if tf.executing_eagerly():
            tf.io.write_file("notes.txt", "x")
    """,
    "many files": """
        for number in range(2000):
            open(f"new{number % 10}", "w").close()
        for number in range(300):
            open("notes.txt", "w").write("x")
    """,
    "deletes compiled modules": "shutil.rmtree('__pycache__', ignore_errors=True)",
}
# Programs that do not reach a step: the code, and a part of the error.
FAILING = {
    "exits": ("shutil.rmtree('logs'); os._exit(0)", "ended with status 0"),
    "is killed": ("os.remove('notes.txt'); os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "aborts": ("os.truncate('notes.txt', 0); os.abort()", "was ended by SIGABRT"),
    "kills its group": (
        "os.remove('notes.txt'); os.killpg(0, signal.SIGKILL)",
        "was ended by SIGKILL",
    ),
    "terminates its group": ("os.remove('notes.txt'); os.killpg(0, 15)", "was ended by SIGTERM"),
    "kills its parent": (
        "os.remove('notes.txt'); os.kill(os.getppid(), 9); time.sleep(1000)",
        "was ended by SIGKILL",
    ),
    "stops itself": ("os.remove('notes.txt'); os.kill(0, signal.SIGSTOP)", "gave no answer"),
    "waits": ("shutil.rmtree('logs'); time.sleep(1000)", "within 8 s"),
    "raises": ("os.remove('notes.txt'); raise RuntimeError('oh')", "raised RuntimeError: oh"),
    "calls exec": ("os.execvp('sleep', ['sleep', '0'])", "ended with status 0"),
    "does not end on exceptions": (
        """
        os.remove("notes.txt")
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass
        """,
        "within 8 s",
    ),
}
_HEADER = """
import bz2, io, lzma, mmap, multiprocessing, os, resource, shutil, signal, sqlite3, subprocess
import sys, tarfile, tempfile, threading, time, zipfile
import numpy as np
import tensorflow as tf
from model import train
"""


def trials(seed: int, count: int) -> Iterator[Trial]:
    every = [
        *(Trial("programs", name, partial(_run_sound, code)) for name, code in SOUND.items()),
        *(
            Trial("programs", name, partial(_run_failing, code, words))
            for name, (code, words) in FAILING.items()
        ),
    ]
    random.Random(seed).shuffle(every)
    yield from every[:count]


def program(code: str) -> str:
    """A program that executes code and then trains."""
    lines = code.strip("\n").splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join([_HEADER, *(line[margin:] for line in lines), "train()", ""])


def prepared(code: str) -> Arena:
    """An arena with a program."""
    arena = Arena()
    arena.write("model.py", MODEL)
    arena.write("train.py", program(code))
    return arena


def _run_sound(code: str) -> Outcome:
    arena = prepared(code)
    command = ["verify", "train.py", *RULE]
    return arena.run(lambda: execute(command, arena.home, arena.environment), [0])


def _run_failing(code: str, words: str) -> Outcome:
    arena = prepared(code)
    command = ["verify", "train.py", "--limit", "8", *RULE]
    return arena.run(lambda: execute(command, arena.home, arena.environment), [2], words)
