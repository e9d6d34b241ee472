"""The hands of a run: everything here may touch the world (clock, ids, threads, tools, the workspace)."""
