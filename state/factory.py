"""From settings to the store that they name."""
from state.memory import MemoryStore
from state.sqlite import SqliteStore, network_file_system


def make_store(settings, wall, log):
    """The store that --store names. Raises ValueError for a file that cannot be one."""
    bounds = (settings.max_responses, int(settings.max_store_mb * (1 << 20)), settings.store_ttl_s, wall)
    if settings.store == "memory":
        return MemoryStore(*bounds)
    path = settings.store[len("sqlite:"):]
    kind = network_file_system(path)
    if kind is not None:
        log("warning", "--store %s is on a network file system (%s): servers on several machines must not share it, and "
            "locks may not hold" % (path, kind))
    return SqliteStore(path, *bounds, sync=settings.store_sync, log=log)
