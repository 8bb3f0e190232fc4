"""Two hosts on one machine: network namespaces with a control link and a data link between them; the second one has a host
name and a /dev/shm of its own too. Root only.

    a: 10.213.7.1 (control)  10.213.8.1 (data)     b: 10.213.7.2  10.213.8.2
"""

import ctypes
import os
import secrets
import shutil
import subprocess
import time

_CLONE_NEWNET = 0x40000000


class Impossible(Exception):
    """This machine cannot have them; the text says why."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Impossible(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


class TwoHosts:
    CONTROL, DATA = "control", "data"

    def __init__(self):
        if os.geteuid() != 0:
            raise Impossible("network namespaces need root")
        for program in ("ip", "unshare", "mount"):
            if shutil.which(program) is None:
                raise Impossible(f"there is no program `{program}`")
        unique = secrets.token_hex(8)
        self.names = {host: f"bitshard-{unique}-{host}" for host in "ab"}
        try:
            for name in self.names.values():
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link", "set", "lo", "up")
            for net, link in ((7, self.CONTROL), (8, self.DATA)):
                _run("ip", "-n", self.names["a"], "link", "add", link, "type", "veth", "peer", "name", link, "netns",
                     self.names["b"])
                for number, host in enumerate("ab", 1):
                    _run("ip", "-n", self.names[host], "address", "add", f"10.213.{net}.{number}/24", "dev", link)
                    _run("ip", "-n", self.names[host], "link", "set", link, "up")
            _run(*self.command("b", "true"))
        except BaseException:
            self.close()
            raise

    def command(self, host, *command):
        """`command` as a process of that host; the pid stays the same."""
        own = [] if host == "a" else ["unshare", "--uts", "--mount", "sh", "-ec",
                                      "hostname host-b; mount -t tmpfs tmpfs /dev/shm; exec \"$@\"", "sh"]
        return ["ip", "netns", "exec", self.names[host], *own, *command]

    def enter(self, host):
        """This thread, and those that it starts from now on, have that host's network."""
        with open(f"/run/netns/{self.names[host]}") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def link(self, link, state):
        """`state`: up or down, at host b."""
        _run("ip", "-n", self.names["b"], "link", "set", link, state)

    def close(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Process:
    def __init__(self, folder, name, command):
        self.name, self.log_path = name, os.path.join(folder, name + ".log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self):
        return open(self.log_path, errors="replace").read()

    def await_log(self, text, timeout=60):
        end = time.monotonic() + timeout
        while text not in self.log():
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"{self.name} does not say {text!r}:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
