"""Puts warmth in: reads files into the page cache from inside a container, charged to it.

``zygote.Injector`` is the daemon's side (asyncio). ``zygote_main`` is the small single-threaded process that it keeps,
which forks one ``worker`` a job; ``files`` finds what is wanted, ``engine`` warms it. Decides nothing: budget,
deadline and patterns come in as a ``job.WarmJob``, what came of it goes out as a ``model.outcome.Outcome``.
"""
