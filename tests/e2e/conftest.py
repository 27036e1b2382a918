"""What holds for all end-to-end tests."""

import os
import signal
import tempfile

# A shell that starts something in the background without job control makes it ignore Ctrl-C, and that is inherited: by
# this process and by every program under test, whose answer to Ctrl-C the tests ask for.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What the program keeps between runs stays out of the user's cache folder, and is new each time.
_cache = tempfile.TemporaryDirectory(prefix="tandem-cache-")
os.environ["XDG_CACHE_HOME"] = _cache.name
