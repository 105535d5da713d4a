"""Why nothing is offloaded to the CPU, and what saves memory instead."""

from __future__ import annotations

UNIFIED_REASON = (
    "CPU and GPU share the same memory chips here, so what is moved away stays where it was: nothing is saved"
)
"""Why nothing is offloaded where CPU and GPU share one memory."""
OFFLOAD_REASONS = {
    "offload_weights": (
        "the update runs inside backward and writes each master there, after both passes have read it: "
        "all would cross the bus three times a step"
    ),
    "offload_optimizer": (
        "the update runs inside backward, where each state is read and written once a step: "
        "all would cross the bus twice a step, and backward would wait for them"
    ),
    "offload_gradients": (
        "the update runs inside backward and uses each gradient at once: "
        "one layer's exist at a time, and none is left to move"
    ),
    "offload_activations": (
        "backward, with the update inside it, would wait for the bus at every layer; "
        "computing them again takes about a fifth more time and no bus"
    ),
}
"""Why a part is not offloaded where the GPU has memory of its own."""
OFFLOAD_INSTEAD = {
    "offload_weights": "train_last_layers=N or a smaller batch_size saves memory",
    "offload_optimizer": (
        "optimizer_state_mode=int8 keeps them in a quarter of the room, train_last_layers=N has fewer"
    ),
    "offload_gradients": "leave it out",
    "offload_activations": "gradient_checkpointing=true or a smaller batch_size saves memory",
}


def offload_problems(recipe: object, unified: bool | None = None) -> list[str]:
    """One problem for each part that a recipe wants to offload, with the reason and what to use instead.

    Args:
        recipe: a `Recipe`.
        unified: whether CPU and GPU share one memory; None (not known) gives both reasons.
    """
    shared = "where CPU and GPU share one memory (GB10), moving saves nothing; elsewhere "
    problems = []
    for key, reason in OFFLOAD_REASONS.items():
        if getattr(recipe, key):
            why = UNIFIED_REASON if unified else (shared if unified is None else "") + reason
            problems.append(f"{key}: true: refused: {why}: {OFFLOAD_INSTEAD[key]}")
    return problems
