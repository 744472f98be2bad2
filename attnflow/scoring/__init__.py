"""How inputs are scored: one file per method, from attention (raw, rollout, flow) or from the model's own reaction."""
