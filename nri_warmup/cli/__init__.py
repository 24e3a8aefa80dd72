"""main and one verb a file. Verbs are imported when asked for, so that each costs only its own imports."""
