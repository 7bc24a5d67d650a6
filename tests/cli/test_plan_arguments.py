"""Arguments of `topocomm plan` that are no good: one line, status 2."""

import pytest

from tests.cli.plan_command import H100, SMALL, refused

BAD = [
    (
        (*H100, "--bytes", "6"),
        "6 bytes: expected a whole number of rows of operator 'sum', 4 bytes each, such as 4 or",
    ),
    (
        (*H100, "--bytes", "4", "--operator", "attention.logsumexp"),
        "4 bytes: expected a whole number of rows of operator 'attention.logsumexp', 516 bytes each, such as 516",
    ),
    *(
        ((*H100, f"--bytes={text}"), f"--bytes {text!r}: expected a whole number of bytes such as 16512, 64KiB")
        for text in ("nonsense", "-4", "1.0001KiB", "64XiB", "", "KiB")
    ),
    (
        (*H100, "--bytes", "64KiB", "--operator", "attention.logsumexp"),
        "65536 bytes: expected a whole number of rows of operator 'attention.logsumexp', 516 bytes each, such as 65532",
    ),
    ((*SMALL, "--what-if", "GPU9=3"), "what-if 'GPU9=3': topology 'dgx-h100' has no link, device or kind of links"),
    ((*SMALL, "--what-if", "nvlink=0"), "what-if 'nvlink=0': expected LINK=GBPS, GB/s above 0"),
    ((*H100, "--plan", "some.json", "--what-if", "nvlink=3"), "--what-if does not go with --plan FILE"),
    ((*SMALL, "--ranks", "0"), "--ranks 0: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"),
    ((*SMALL, "--ranks=-2"), "--ranks -2: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"),
    ((*SMALL, "--ranks", "9"), "--ranks 9: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"),
    ((*SMALL, "--ranks", "GPU0,GPU8"), "rank on 'GPU8': not an endpoint of topology 'dgx-h100'; it has GPU0, GPU1"),
    ((*SMALL, "--ranks", "GPU0,"), "rank on '': not an endpoint of topology 'dgx-h100'"),
    ((*SMALL, "--ranks", "GPU0,NVS/0"), "rank on 'NVS/0': not an endpoint"),
    ((*SMALL, "--operator", "mean"), "unknown operator 'mean'; installed packages register affine, "),
    (("--system", "dgx-x", "--bytes", "4"), "system 'dgx-x' is not in the catalogue; it has dgx-1-v100"),
    ((*SMALL, "--collective", "reduce", "--root", "8"), "root 8 is outside ranks 0..7"),
    ((*SMALL, "--collective", "broadcast", "--ranks", "2", "--root", "2"), "root 2 is outside ranks 0..1"),
    ((*SMALL, "--root=-1"), "root -1 is outside ranks 0..7"),
    ((*SMALL, "--ports", "0"), "ports 0: expected 1 to 7 with 8 ranks"),
    ((*SMALL, "--ports", "8"), "ports 8: expected 1 to 7 with 8 ranks"),
    ((*SMALL, "--ports", "1.5"), "argument --ports: expected a whole number, got '1.5'"),
    ((*SMALL, "--launch-us=-1"), "topology 'dgx-h100': launch_us -1.0: expected a time of at least 0 us"),
    ((*SMALL, "--launch-us", "nan"), "topology 'dgx-h100': launch_us nan: expected a time of at least 0 us"),
    ((*SMALL, "--launch-us", "slow"), "argument --launch-us: expected a number, got 'slow'"),
    ((*H100, "--plan", "some.json", "--launch-us", "7"), "--launch-us does not go with --plan FILE"),
    ((*SMALL, "--objective", "fast"), "argument --objective: invalid choice: 'fast' (choose from "),
    ((*SMALL, "--port-model", "pram"), "argument --port-model: invalid choice: 'pram' (choose from "),
    ((*SMALL, "--collective", "barrier"), "argument --collective: invalid choice: 'barrier' (choose from "),
    ((*SMALL, "--order", "rank"), "argument --order: invalid choice: 'rank' (choose from "),
    ((*SMALL, "--order", "canonical", "--collective", "scan"), "scan in canonical order: expected allreduce"),
    ((*H100, "--plan", "some.json", "--order", "any"), "--order does not go with --plan FILE"),
    (("--hosts", "2", "--bytes", "4"), "--hosts goes with --system NAME, or with --input FILE of one host"),
    ((*H100, "--plan", "nowhere.json"), "nowhere.json: cannot read the plan: No such file or directory"),
    (("--input", "nowhere.txt", "--bytes", "4"), "nowhere.txt: cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_arguments_are_one_line_and_status_2(capsys, words, message):
    assert message in refused(capsys, *words)


@pytest.mark.parametrize("words", [("--bytes", "9" * 5000), ("--bytes", "4", "--ranks", "²")], ids=["long", "square"])
def test_digits_that_are_no_number_are_one_line_too(capsys, words):
    refused(capsys, *H100, *words)
