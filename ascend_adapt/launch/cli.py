"""`ascend-run`: parse the command line, make the job, then print its plan or start it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ascend_adapt import standard_streams, working_folder
from ascend_adapt.errors import AdaptError, SettingsError
from ascend_adapt.launch import request as requests
from ascend_adapt.launch.jobs import checks
from ascend_adapt.launch.jobs.make import make_job
from ascend_adapt.launch.jobs.show import show
from ascend_adapt.launch.one_host import signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ascend-run` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    standard_streams.prepare()
    signals.outlive_passed()
    try:
        working_folder.check()
        request = requests.parse(arguments)
        if request.fit:
            from ascend_adapt.launch.fit import search

            return search.run(request, *requests.trial_of(arguments), os.environ)
        with make_job(request, os.environ) as job:
            if request.dry_run:
                return show(job, as_json=request.json or not sys.stdout.isatty())
            return job.start()
    except AdaptError as error:
        if "--debug" in arguments:
            raise
        print("\n".join(f"ascend-run: {line}" for line in str(error).split("\n")), file=sys.stderr)
        return 2 if isinstance(error, (SettingsError, checks.UsageError)) else 1
    except KeyboardInterrupt:
        # Ctrl-C before the runner has installed its signal handlers: no process has been started.
        return 130


if __name__ == "__main__":
    sys.exit(main())
