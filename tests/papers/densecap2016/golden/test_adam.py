import torch

from saywhere.papers.densecap2016 import conventions as original


def test_four_steps(golden, same):
    case = golden("adam")
    assert len(case["steps"]) == 4
    x = torch.nn.Parameter(case["x0"].clone())
    optimizer = original.Adam([x], lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"])
    for step in case["steps"]:
        x.grad = step["dx"].clone()
        optimizer.step()
        same(x.detach(), step["x"])
