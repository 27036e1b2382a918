"""Results as `tandem bench --json` writes them, made by hand: what --plot and --compare read."""
import json


def around(x):
    return {"median": x, "min": 0.98 * x, "max": 1.02 * x}


def case(k, ratio, verify="greedy", temperature=0.0, width=1, places=((100, 80), (80, 60)), interval=0.05, **more):
    """places: (drafted, accepted) by place in the draft."""
    if k == 0:
        places = ()
    drafted, accepted = sum(d for d, _ in places), sum(a for _, a in places)
    return {"k": k, "width": width, "verify": verify, "temperature": temperature, "tok_per_s": around(20 * ratio),
            "ratio": around(ratio), "ratio_low": ratio - interval if interval and k else None,
            "ratio_high": ratio + interval if interval and k else None, "predicted": None, "drafted": drafted,
            "accepted": accepted, "acceptance_rate": accepted / drafted if drafted else None,
            "drafted_per_pos": [d for d, _ in places], "accepted_per_pos": [a for _, a in places], "passes": 100,
            "tokens": 300, "draft_ms": 1.0, "verify_ms": 2.0, "sample_ms": 0.1, "same_text": True, **more}


def result(cases, prompts=None, **more):
    """prompts: the cases of each; none: one prompt, with the cases of all."""
    prompts = [cases] if prompts is None else prompts
    return {"tandem_bench": 1,
            "target": {"path": "models/target.gguf", "arch": "qwen2", "name": "Target 1.5B", "weight_bytes": 1000,
                       "threads": 2},
            "draft": {"path": "models/draft.gguf", "arch": "qwen2", "name": "Draft 0.5B", "weight_bytes": 300},
            "n_predict": 128, "runs": 1, "sets": [], "all": cases, "passes": None, "timeline": None,
            "prompts": [{"id": f"p{i}", "set": None, "lang": None, "prompt_tokens": 10 + i, "cases": c}
                        for i, c in enumerate(prompts)],
            "versions": {"tandem": "0.1.0", "cpu": "avx2", "report": 1}, **more}


def save(path, value):
    path.write_text(json.dumps(value))
    return path
