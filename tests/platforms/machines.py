"""The machines of the laboratory, as data: which Python, which CPU, and what is run there."""

from dataclasses import dataclass

# the packages of the extra `test` that the programs of tests/campaigns need; the whole extra is for `suite`
FEW = "numpy<2.6", "numba", "ml_dtypes", "rich", "pytest", "hypothesis"
NEWEST = "numpy>=2.5,<2.6", "numba"
LOWEST = "numpy==2.0.*", "numba==0.62.*"


@dataclass(frozen=True)
class Machine:
    """A Python on a CPU.

    Attributes
    ----------
    python : str
        Version of Python; "" for the Python that runs this.
    suite : str
        Suite of Debian that has a package of it for `architecture`; "" for the Python of that version on PATH.
    emulated : str
        QEMU's name of the CPU; "" where code runs on this one.
    cpu, features : str
        LLVM's names for the CPU that kernels are compiled for; "" for this one.
    packages : tuple of str
        What pip installs, besides the package with its extra `test` where the suite is run.
    runs : tuple of str
        What is run, of `suite`, `fuzz` and `patterns`.
    """

    name: str
    python: str = ""
    suite: str = ""
    architecture: str = "amd64"
    emulated: str = ""
    cpu: str = ""
    features: str = ""
    packages: tuple[str, ...] = FEW
    runs: tuple[str, ...] = ("fuzz", "patterns")

    @property
    def compiler(self):
        """The machine that compiles for this one: the same Python, on this CPU."""
        return Machine(f"python{self.python}-compiler", self.python, self.suite, packages=self.packages)

    @property
    def described(self):
        """What it is, in a line."""
        where = f"Debian {self.suite}" if self.suite else "PATH"
        python = f"Python {self.python} of {where}" if self.python else "this Python"
        where = f", {self.architecture} by emulation of {self.emulated}" if self.emulated else ""
        code = f", code for {self.cpu}" if self.cpu else ""
        return f"{python}{where}{code}, {', '.join(self.packages[:2])}: {', '.join(self.runs)}"

    @property
    def triple(self):
        """LLVM's name of the system; "" for this one."""
        return "aarch64-unknown-linux-gnu" if self.architecture == "arm64" else ""


def _arm64(name, emulated, features):
    cpu = name if emulated != "max" else "neoverse-v2"
    return Machine(name, "3.13", "trixie", "arm64", emulated, cpu, features)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("lowest", packages=LOWEST, runs=("suite",)),
        Machine("python3.12", "3.12", packages=NEWEST, runs=("suite",)),
        Machine("python3.13", "3.13", "trixie", packages=NEWEST, runs=("suite",)),
        Machine("python3.14", "3.14", "sid", packages=NEWEST, runs=("suite",)),
        Machine("python3.15", "3.15", "sid", packages=NEWEST, runs=("suite",)),
        _arm64("neoverse-n1", "neoverse-n1", "+neon,+fp-armv8"),
        _arm64("cortex-a57", "cortex-a57", "+neon,+fp-armv8"),
        _arm64("arm64-max", "max", "+neon,+fp-armv8,+sve2"),
        Machine("x86-64-v2", cpu="x86-64-v2"),
        Machine("x86-64-v3", cpu="x86-64-v3"),
        Machine("x86-64-v4", cpu="x86-64-v4"),
    )
}
