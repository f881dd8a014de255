"""Create `.venv-interop`: speculators 0.9.0 beside the project's own packages.

speculators caps transformers at 5.19.0, so it can not live in the project's environment. The second one sees that
environment's packages (torch is large) through a path file and puts its own versions before them. Nothing is resolved
(`--no-deps`): torchvision and torchaudio are declared by speculators but not needed.

    python tests/interop/create_environment.py
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-interop"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = ["speculators==0.9.0", "hs-connectors==0.9.0", "transformers==5.19.0"]
# what speculators imports and the project does not have; checked one by one, so that nothing is installed twice
NEEDED = [
    "openai",
    "sniffio",
    "loguru",
    "pydantic-settings",
    "typer",
    "httpx",
    "rich",
    "psutil",
    "protobuf",
    "distro",
    "jiter",
]


def main() -> int:
    """Create the environment, or say that it is complete."""
    if _works():
        print(f"{FOLDER.name} is complete")
        return 0
    venv.create(FOLDER, with_pip=True)
    packages = next((FOLDER / "lib").glob("python*/site-packages"))
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True, timeout=600
    )
    missing = [
        name
        for name in NEEDED
        if subprocess.run(
            [PYTHON, "-m", "pip", "show", "-q", name], capture_output=True, check=False
        ).returncode
    ]
    if missing:
        subprocess.run(
            [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", *missing], check=True, timeout=600
        )
    return 0 if _works() else 1


def _works() -> bool:
    check = (
        "import speculators.convert.entrypoints, transformers; assert transformers.__version__ == '5.19.0'"
    )
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", check], timeout=120, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
