"""EngineState: how busy an engine is, as plain data that may go to another process."""

from dataclasses import dataclass

from cutaway.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One engine at one moment; each of n samples is one sequence.

    running       sequences that hold KV blocks
    most_running  as many may at once
    waiting       sequences in the queue
    preemptions   sequences that were sent back to it, since the start
    kv_blocks     all of the engine
    kv_held       of these, by running sequences; the others are free or the prefix cache's
    window_blocks KV blocks that take memory in the layers that see a window; None without such
    states        recurrent states in memory, those of KV blocks; None where no layer has one
    """

    running: int
    most_running: int
    waiting: int
    preemptions: int
    kv_blocks: int
    kv_held: int
    window_blocks: int | None
    states: int | None

    @classmethod
    def of(cls, engine: Engine) -> "EngineState":
        """Read while another thread may step it: lengths and integers only."""
        blocks = engine.blocks
        free = min(blocks.free, blocks.count)  # the two may change while they are read
        return cls(
            running=len(engine.running), most_running=engine.scheduler.max_num_seqs,
            waiting=len(engine.waiting),
            preemptions=engine.scheduler.preemptions, kv_blocks=blocks.count,
            kv_held=blocks.count - free,
            window_blocks=blocks.windows.held if blocks.windows else None,
            states=blocks.states.held if blocks.states else None,
        )  # fmt: skip
