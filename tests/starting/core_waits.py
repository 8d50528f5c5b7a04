"""How long a process waited for a core: what a busy machine adds to the times of a test."""

from pathlib import Path


def waited_for_a_core_ns(pid: int | str = "self") -> int:
    """All threads of the process together, since they began."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks)
