"""`enable`: plain `model.generate` keeps its cache sharded; which caches it takes the place of, and what it refuses."""

import copy

import pytest
import torch
import transformers

from attention.cache.shards import ShardMap
from attention.huggingface.generation import enable, shard_generation
from attention.huggingface.sharded_cache import ShardedCache
from tests.attention.huggingface.test_hf_layers import build, generate, prompt, small
from tests.attention.losing import leave
from tests.once import once
from tests.thinning import alternating
from topocomm import RankFailedError, run_local

LIMIT = 1e-4


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def on_ranks(model, call, ranks=3, **options):
    """What `call(sharding)` returns on every rank."""

    def work(comm):
        with enable(model, comm, **{"shards": small(ranks), **options}) as sharding:
            return call(sharding)

    return run_local(work, ranks=ranks)


def assert_same(outputs, expected):
    for rank, got in enumerate(outputs):
        assert torch.equal(got.sequences, expected.sequences), f"rank {rank}"
        apart = (torch.stack(got.logits) - torch.stack(expected.logits)).abs().max()
        assert float(apart) <= LIMIT, f"rank {rank}"


def test_calls_begin_afresh_and_each_rank_holds_its_part(llama):
    def call(sharding):
        first, made = sharding.cache, []
        for inputs in (prompt(), prompt(17), prompt()):
            made.append(generate(llama, inputs))
            assert sharding.cache is made[-1].past_key_values is not first
            assert sharding.cache.get_seq_length() == inputs["input_ids"].shape[1] + 9
        return made, sharding.cache.sharded_layers[0].store.n_local

    outputs = on_ranks(llama, call)
    assert sum(held for _, held in outputs) == 39
    assert all(held > 0 for _, held in outputs)
    for index, inputs in enumerate((prompt(), prompt(17), prompt())):
        assert_same([made[index] for made, _ in outputs], generate(llama, inputs))


@pytest.mark.parametrize(
    ("family", "kind"), alternating(["Llama", "Mistral", "Gemma2"], ["dynamic", "static", "offloaded"])
)
def test_static_and_dynamic_caches_by_name(family, kind):
    model = build(family)
    assert_same(on_ranks(model, lambda _: generate(model, prompt(), cache_implementation=kind)), alone(model))


def test_a_cache_named_in_a_generation_config(llama):
    config = transformers.GenerationConfig(cache_implementation="static", max_new_tokens=10, pad_token_id=0)

    def call(_):
        return llama.generate(**prompt(), generation_config=config)

    for got in on_ranks(llama, call):
        assert torch.equal(got, alone(llama).sequences)
    assert config.cache_implementation == "static"


@pytest.mark.parametrize(
    "make",
    [
        lambda model: transformers.DynamicCache(config=model.config),
        lambda model: transformers.StaticCache(config=model.config, max_cache_len=60),
    ],
    ids=["dynamic", "static"],
)
@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_a_sharded_cache_takes_the_place_of_an_empty_one(family, make):
    model = build(family)

    def call(sharding):
        given = make(model)
        made = generate(model, prompt(), past_key_values=given)
        assert made.past_key_values is sharding.cache
        with pytest.raises(ValueError, match=r"Cache was replaced by a sharded cache in an earlier call"):
            generate(model, prompt(), past_key_values=given)
        return made

    assert_same(on_ranks(model, call), alone(model))


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_a_second_turn_goes_on_from_the_cache_of_the_first(family):
    model = build(family)
    extra = torch.randint(3, 97, (2, 7), generator=torch.Generator().manual_seed(3))

    def talk(**second):
        first = generate(model, prompt())
        ids = torch.cat([first.sequences, extra], 1)
        mask = torch.cat([prompt()["attention_mask"], torch.ones(2, 17, dtype=torch.int64)], 1)
        options = {name: value() for name, value in second.items()}
        return generate(model, {"input_ids": ids, "attention_mask": mask}, **options)

    def call(sharding):
        begun = []

        def cache():
            begun.append(sharding.cache)
            return sharding.cache

        made = talk(past_key_values=cache)
        assert made.past_key_values is sharding.cache is begun[0]
        return made

    assert_same(on_ranks(model, call), talk())


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_seeded_sampling(family):
    model = build(family)
    options = {"do_sample": True, "temperature": 1.5, "top_k": 40}
    torch.manual_seed(5)
    expected = generate(model, prompt(), **options)
    torch.manual_seed(5)
    assert_same(on_ranks(model, lambda _: generate(model, prompt(), **options)), expected)


def test_beams_and_several_answers(llama):
    options = {"num_beams": 4, "num_return_sequences": 3}
    expected = generate(llama, prompt(), **options)
    for got in on_ranks(llama, lambda _: generate(llama, prompt(), **options)):
        assert torch.equal(got.sequences, expected.sequences)


@pytest.mark.parametrize("sample", [False, True])
def test_an_assistant_drafts_tokens(llama, sample):
    """The assistant computes alone on every rank; whether its drafts are taken is rank 0's choice."""
    torch.manual_seed(3)
    assistant = type(llama)(copy.deepcopy(llama.config))
    assistant.set_attn_implementation("eager")
    ids = prompt()["input_ids"][1:]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options = {"assistant_model": assistant.eval(), "do_sample": sample}
    torch.manual_seed(5)
    expected = llama.generate(**inputs, max_new_tokens=10, **options)
    torch.manual_seed(5)
    outputs = on_ranks(llama, lambda _: llama.generate(**inputs, max_new_tokens=10, **options))
    assert all(torch.equal(got, expected) for got in outputs)


def test_prompts_shorter_than_the_number_of_ranks(llama):
    for tokens in (1, 2):
        inputs = {"input_ids": torch.full((1, tokens), 7), "attention_mask": torch.ones(1, tokens, dtype=torch.int64)}
        expected = generate(llama, inputs, max_new_tokens=4)
        outputs = on_ranks(llama, lambda _, inputs=inputs: generate(llama, inputs, max_new_tokens=4), ranks=4)
        assert_same(outputs, expected)


@pytest.mark.parametrize("shape", [(1, 0), (0, 4)])
@pytest.mark.parametrize("name", ["input_ids", "inputs_embeds"])
def test_prompts_without_a_token(llama, shape, name):
    prompt = {"attention_mask": torch.ones(shape, dtype=torch.int64)}
    prompt[name] = torch.zeros(shape, dtype=torch.int64) if name == "input_ids" else torch.zeros(*shape, 32)

    def work(sharding):
        with pytest.raises(ValueError, match=rf"generate: {name} is \[{shape[0]}, {shape[1]}.*: give at least one row"):
            llama.generate(**prompt, max_new_tokens=2)
        return True

    assert on_ranks(llama, work) == [True] * 3


def test_uneven_shares_and_a_rank_without_any(llama):
    shards = ShardMap(3, virtual_shards=8, block_size=1, weights=(6, 2, 0))

    def call(sharding):
        return generate(llama, prompt()), sharding.cache.sharded_layers[0].store.n_local

    outputs = on_ranks(llama, call, shards=shards)
    assert_same([made for made, _ in outputs], alone(llama))
    assert [held for _, held in outputs] == [30, 9, 0]


def test_prefill_in_chunks(llama):
    model = build("Mistral")
    assert_same(on_ranks(model, lambda _: generate(model, prompt(), prefill_chunk_size=7)), alone(model))


def test_a_plain_forward_pass_with_the_cache(llama):
    def call(sharding):
        with torch.no_grad():
            return llama(**prompt(), past_key_values=sharding.cache).logits

    with torch.no_grad():
        expected = llama(**prompt()).logits
    present = prompt()["attention_mask"].bool()
    for got in on_ranks(llama, call):
        assert float((got - expected)[present].abs().max()) <= LIMIT


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("family", ["Mistral", "Gemma2"])
def test_a_lost_rank_where_windows_have_dropped_tokens(family, replicas):
    """What windows have let go of cannot be seen again: then all is computed anew, unless copies are left."""
    model = build(family)

    def call(sharding):
        cache = sharding.cache
        made = generate(model, prompt(), past_key_values=cache)
        comm = cache.comm
        if comm.rank == 1:
            for layer in cache.sharded_layers:
                layer.store.k.fill_(torch.nan)
            leave(comm)
            return None
        with pytest.raises(RankFailedError), torch.no_grad():
            model(made.sequences[:, -1:], past_key_values=cache)
        loss = cache.recover(comm.shrink())
        assert bool(loss.lost) == (replicas == 1)
        assert all(layer.store.window is None or layer.store.first > 0 for layer in cache.sharded_layers)
        inputs = {"input_ids": made.sequences, "attention_mask": torch.ones_like(made.sequences)}
        inputs["attention_mask"][:, :30] = prompt()["attention_mask"]
        return generate(model, inputs, past_key_values=cache, max_new_tokens=8), generate(model, prompt())

    expected = generate(model, prompt(), max_new_tokens=18)
    for outcome in on_ranks(model, call, replicas=replicas):
        if outcome is not None:
            went_on, fresh = outcome
            assert torch.equal(went_on.sequences, expected.sequences)
            assert_same([fresh], alone(model))


@pytest.mark.parametrize("family", ["Llama", "GptOss"])
def test_autocast(family):
    """Rotary keys are float32 and values bfloat16; the first logits are as near as two such runs are."""
    model = build(family)

    def call(_):
        with torch.autocast("cpu", torch.bfloat16):
            return generate(model, prompt())

    expected = call(None)
    for got in on_ranks(model, call):
        assert got.sequences.shape == expected.sequences.shape
        first, wanted = got.logits[0], expected.logits[0]
        assert float((first - wanted).abs().max()) <= 0.05 * float(wanted.abs().max())


# How it ends.


def test_disable_without_a_context(llama):
    before = llama.config._attn_implementation

    def work(comm):
        sharding = enable(llama, comm, shards=small(2))
        made = generate(llama, prompt())
        comm.barrier()
        sharding.disable()
        sharding.disable()
        return made

    assert_same(run_local(work, ranks=2), alone(llama))
    assert llama.config._attn_implementation == before
    assert "generate" not in vars(llama)
    assert_same([generate(llama, prompt())], alone(llama))


def test_an_error_inside_ends_it(llama):
    def fail(_):
        raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        on_ranks(llama, fail)
    assert "generate" not in vars(llama)
    assert llama.config._attn_implementation == "eager"


def test_a_generate_that_the_model_had_of_its_own_is_called_and_put_back(llama, monkeypatch):
    calls, expected = [], alone(llama)
    plain = llama.generate
    monkeypatch.setitem(vars(llama), "generate", lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs))
    own = llama.generate
    assert_same(on_ranks(llama, lambda _: generate(llama, prompt())), expected)
    assert llama.generate is own
    assert len(calls) == 3


# What is refused.


def refused(model, call, ranks=2):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the message
        on_ranks(model, call, ranks=ranks)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"cache_implementation": "quantized"}, "cache_implementation='quantized' cannot be sharded; leave it out"),
        ({"use_cache": False}, "use_cache=False leaves nothing to shard; leave it out, or call disable() first"),
    ],
)
def test_options_that_leave_nothing_to_shard(llama, options, part):
    assert part in refused(llama, lambda _: generate(llama, prompt(), **options))


def test_a_cache_that_has_tokens(llama):
    filled = transformers.DynamicCache(config=llama.config)
    with torch.no_grad():
        llama(prompt()["input_ids"][:, :9], past_key_values=filled)
    message = refused(llama, lambda _: generate(llama, prompt(), past_key_values=filled))
    assert "past_key_values is a DynamicCache of 9 tokens, all on this rank; give no past_key_values" in message


def test_two_models_at_once_and_an_unknown_method(llama):
    other = build("Mistral")
    assert "is sharded in this thread already" in refused(llama, lambda sharding: enable(other, sharding.cache.comm))
    assert other.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="enable: method must be one of tree, ring, allreduce, got 'star'"):
        on_ranks(llama, lambda _: None, method="star")


def test_a_cache_of_other_ranks(llama):
    def work(comm):
        other = ShardedCache(llama, comm.split(0), small(2))
        with enable(llama, comm, shards=small(2)):
            generate(llama, prompt(), past_key_values=other)

    with pytest.raises(ValueError, match="a ShardedCache of another communicator"):
        run_local(work, ranks=2)


def test_shard_generation_leaves_generatealone(llama):
    def work(comm):
        with shard_generation(llama, comm, shards=small(2)):
            generate(llama, prompt())

    with pytest.raises(ValueError, match="pass past_key_values=cache"):
        run_local(work, ranks=2)


@once
def alone(model):
    return generate(model, prompt())
