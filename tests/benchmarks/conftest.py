import sys
from pathlib import Path

# The scripts of benchmarks/ import each other by plain names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
