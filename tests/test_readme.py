"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_prints_what_the_readme_says() -> None:
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", README.read_text(), flags=re.DOTALL)[:2]
    assert code.count("\n") - code.count("\n\n") <= 10, "the example is to stay at ten lines"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown


def test_every_relative_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
