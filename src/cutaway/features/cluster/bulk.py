"""``generate``: a text for each row of a Ray dataset, by many models in parallel."""

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import CutawayError, InputError
from cutaway.features.cluster.plan import claim
from cutaway.features.cluster.rows import BulkJob, Checkpoint, digest, part_name, write_part
from cutaway.requests.base import common_options

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

_PATIENCE_S = 30.0  # for the cores of a run that was just killed
_PART = 32
"""The number of rows in a file. A killed worker's successor repeats at most this many rows."""


def generate(
    dataset: "Dataset",
    *,
    model: str | PathLike[str] | None = None,
    prompt: str = "prompt",
    id: str = "id",
    replicas: int | tuple[int, int] = 1,
    cores: int = 1,
    checkpoint: str | PathLike[str] | None = None,
    batch_size: int = 256,
    token_ids: bool = False,
    column_prefix: str = "",
    load: Mapping[str, Any] | None = None,
    **options: Any,
) -> "Dataset":
    """Return a dataset with a text for the prompt of each row.

    prompt    the column of prompts: texts, token ids, or lists of messages
    id        the column of each row's unique id, a text or a whole number. The row's seed derives
              from it and ``seed``, so a row has the same text on any worker
    replicas  the number of models, or (fewest, most); each model is a process with ``cores``
              processors
    checkpoint  a folder on storage that all nodes share. Rows are saved there as they end; the call
              returns when all are saved. After a kill, the same call does the remaining rows.
              Without a checkpoint, the dataset is lazy, as is usual in Ray Data, and nothing is
              saved
    batch_size  the number of rows in one call of a model
    token_ids add a column with the ids of each text's tokens
    column_prefix  the prefix of the added columns' names
    load      keywords of ``LLM``, such as {"context": 2048}
    options   as for ``LLM.generate``; n and traces are refused

    Adds text, finish_reason, fingerprint, system_fingerprint, seed and error, which says why a row
    has no text; other rows are unaffected. Raises InputError where no row can be generated.
    """
    job = BulkJob(
        model=None if model is None else str(model), prompt=prompt, id=id, token_ids=token_ids,
        before=column_prefix, load=dict(load or {}), options=options,
    )  # fmt: skip
    _check_job(job)
    _check_columns(dataset, job)
    map_options = _workers(replicas, cores) | {"batch_size": check_int("batch_size", batch_size, 1)}

    def write(rows: "Dataset", run: Path | None) -> "Dataset":
        return rows.map_batches(_Writer, fn_constructor_args=(job, cores, run), **map_options)

    if checkpoint is None:
        return write(dataset, None)
    return _complete(dataset, job, Checkpoint(checkpoint, _describe(job)), write)


def _complete(
    dataset: "Dataset", job: BulkJob, saved: Checkpoint,
    write: "Callable[[Dataset, Path | None], Dataset]",
) -> "Dataset":  # fmt: skip
    """Write the rows that a checkpoint lacks, and return all that it has."""
    from ray.data import read_parquet

    if (left := _left(dataset, job, saved)) is not None:
        _finish(write(left, saved.open()))
        saved.close()
    return read_parquet(saved.files())


class _Writer:
    """A worker: a process with a model, which generates the texts of rows."""

    def __init__(self, job: BulkJob, cores: int, run: Path | None) -> None:
        self._job, self._run = job, run
        self._refusal: CutawayError | None = None
        try:
            self._claim = claim(cores, patience_s=_PATIENCE_S)
            self._claim.pin()
            self._llm = job.open()
        except CutawayError as error:  # raised here, Ray would report a dead actor
            self._refusal = error

    def __call__(self, table: "pyarrow.Table") -> Iterator["pyarrow.Table"]:
        """Yield a batch's rows, 32 at a time; with a checkpoint, yield only how many were saved."""
        import pyarrow as pa

        if self._refusal is not None:
            raise self._refusal
        self._claim.pin()  # Ray may have made the model in another thread
        ids, prompts = (table[name].to_pylist() for name in (self._job.id, self._job.prompt))
        results: list[dict[str, Any] | None] = [None] * len(ids)
        for place, columns in self._job.write(self._llm, zip(ids, prompts, strict=True)):
            results[place] = columns
            start = place - place % _PART
            rows = results[start : start + _PART]
            if None in rows:
                continue
            part = _with_columns(table.slice(start, _PART), rows, self._job)
            if self._run is None:
                yield part
            else:
                write_part(self._run, part, part_name(ids[start : start + _PART]))
                yield pa.table({"rows": [len(rows)]})


def _with_columns(table: "pyarrow.Table", rows: list[Any], job: BulkJob) -> "pyarrow.Table":
    import pyarrow as pa

    types = {"seed": pa.int64(), "token_ids": pa.list_(pa.int32())}
    for name, column in job.added_columns.items():
        values = [row[name] for row in rows]
        table = table.append_column(column, pa.array(values, types.get(name, pa.string())))
    return table


def _check_job(job: BulkJob) -> None:
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"cutaway.features.cluster.generate needs {error.name}: pip install 'cutaway[ray-data]'"
        ) from error
    parsed = common_options(job.options)
    if parsed.n != 1:
        raise InputError(
            "n", " must be 1: for more texts of a prompt, repeat its row with another id"
        )
    job.check_load()


def _check_columns(dataset: Any, job: BulkJob) -> None:
    from ray.data import Dataset

    if not isinstance(dataset, Dataset):
        raise InputError(
            "dataset",
            f" must be one of Ray Data, as ray.data.read_parquet makes it, not {shown(dataset)}",
        )
    if not (columns := dataset.columns()):
        raise InputError("dataset", " has no rows")
    for role, name in (("prompt", job.prompt), ("id", job.id)):
        if name not in columns:
            raise InputError(
                f"{role}: the dataset has no column {name!r}; it has {', '.join(columns)}"
            )
    for name in job.added_columns.values():
        if name in columns:
            raise InputError(
                "column_prefix", f": the dataset has a column {name!r} already: set a prefix"
            )


def _workers(replicas: Any, cores: int) -> dict[str, Any]:
    """Arguments of ``map_batches``; InputError where the workers would wait forever."""
    import ray
    from ray.data import ActorPoolStrategy

    bounds = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    if len(bounds) != 2:
        raise InputError("replicas", f" must be a number or (fewest, most), not {shown(replicas)}")
    fewest = check_int("replicas", bounds[0], 1)
    most = check_int("replicas", bounds[1], fewest)
    check_int("cores", cores, 1)
    node_cores = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    if cores > max(node_cores):
        raise InputError("cores", f" must be {max(node_cores):g} or fewer: no node has {cores}")
    if fewest * cores >= sum(node_cores):
        raise InputError(
            "replicas",
            f": {fewest} with {cores} cores each leave none of the cluster's {sum(node_cores):g} "
            "for reading the dataset: take fewer",
        )
    pool = ActorPoolStrategy(min_size=fewest, max_size=most)
    return {"num_cpus": cores, "compute": pool, "batch_format": "pyarrow"}


def _describe(job: BulkJob) -> dict[str, Any]:
    """Everything besides a row's own columns that determines its text."""
    options = {name: value for name, value in job.options.items() if name != "cache_salt"}
    in_force = common_options(job.options).to_json(job.options.get("seed"))
    return {
        "model": job.model, "prompt": job.prompt, "id": job.id, "columns": job.added_columns,
        "load": {name: str(value) for name, value in job.load.items()},
        "options": {name: in_force.get(name, str(value)) for name, value in options.items()},
    }  # fmt: skip


def _left(dataset: "Dataset", job: BulkJob, saved: Checkpoint) -> "Dataset | None":
    """The rows that are not finished; None if all are finished."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from ray.data import read_parquet

    digests = _digests_by_id(dataset, job)
    files = saved.files()
    done = _digests_by_id(read_parquet(files), job) if files else {}
    for name, of in done.items():
        if digests.get(name) != of:
            problem = "is not in the dataset" if name not in digests else "had another prompt"
            raise InputError(
                "checkpoint",
                f": a row in {saved.path} with the id {shown(name)} {problem}: name a new folder",
            )
    if len(done) == len(digests):
        return None
    if not done:
        return dataset
    finished = pa.array(done)

    def without_finished(table: "pyarrow.Table") -> "pyarrow.Table":
        ids = table[job.id].cast(finished.type)
        return table.filter(pc.invert(pc.is_in(ids, value_set=finished)))

    return dataset.map_batches(without_finished, batch_format="pyarrow", zero_copy_batch=True)


def _digests_by_id(dataset: "Dataset", job: BulkJob) -> dict[Any, bytes]:
    """Map each row's id to a digest of its prompt; InputError if two rows have the same id."""
    import pyarrow as pa

    def digests(table: "pyarrow.Table") -> "pyarrow.Table":
        hashes = [digest(prompt) for prompt in table[job.prompt].to_pylist()]
        return pa.table({"id": table[job.id], "digest": pa.array(hashes, pa.binary())})

    digests_by_id: dict[Any, bytes] = {}
    hashed = dataset.select_columns([job.id, job.prompt]).map_batches(
        digests, batch_format="pyarrow", zero_copy_batch=True
    )
    for table in hashed.iter_batches(batch_size=None, batch_format="pyarrow"):
        for name, of in zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True):
            if name in digests_by_id:
                raise InputError(f"{job.id}: several rows have the id {shown(name)}")
            job.seed(name)  # refuses what cannot be an id
            digests_by_id[name] = of
    return digests_by_id


def _finish(dataset: "Dataset") -> None:
    """Run the dataset to its end; raise InputError with the message of a worker's CutawayError."""
    from ray.exceptions import RayError

    try:
        for _ in dataset.iter_batches(batch_size=None):
            pass
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, CutawayError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is None:
            raise
        # Ray appends lines of its own to the message.
        raise InputError(str(getattr(cause, "cause", cause)).partition("\n")[0]) from None
