"""The one door between the two packages: requests in, events and a result out, and the row files of both.

It imports neither torch nor hydra, so that `pipeline` starts in well under a second, and `pipeline` imports
nothing else from `stages`.
"""
