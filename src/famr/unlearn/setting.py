"""What a run works on: its images as passes over them, what is at hand besides, and the weights that may change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from famr.config import FAMR
from famr.data import Images
from famr.data.loaders import (
    Batches,
    LabelledImages,
    evaluation_batch_size,
    evaluation_batches,
    gradient_batch_size,
    image_batches,
    loader_batches,
    order,
)
from famr.data.splits import Splits
from famr.engine.distributed import ALONE, Ranks
from famr.engine.prefix import Front, fits, frozen_front
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.layers import call_order, late_parameters, train_only
from famr.targets.probe import probe_images
from famr.unlearn.forget_loss import ForgetLoss, Passes
from famr.unlearn.resolve import AtHand
from famr.unlearn.sketch import Sketch

SHOWN = 2000
"""Held-out images, at most, that tell how sure a target is to be, and on which a run is followed: as many as the
benchmarks show to a method. Its result is measured on all."""


def what_is_at_hand(splits: Splits | None, anchor_images: bool, sketch: Sketch | None, batches: int) -> AtHand:
    """What there is besides the forget images; with a sketch, images given without a request tell what they are."""
    if splits is None:
        return AtHand("images", retained=anchor_images, held_out=False, sketch=sketch is not None, batches=batches)
    kind = splits.request.kind
    if kind == "concept" and not splits.forgets_classes():
        kind = "samples"  # of classes that stay: a retrained model would still know most of them
    if kind == "images" and sketch is not None:
        kind = "class" if sketch.covers_classes(splits.forget.targets) else "samples"
    counts: dict[int, int] = {}
    if splits.retain is not None and splits.retain.labelled:
        counts = splits.retain.class_counts()
    return AtHand(
        kind,
        retained=anchor_images or splits.retain is not None,
        held_out=splits.test is not None,
        sketch=sketch is not None,
        batches=batches,
        classes=len(counts),
        fewest=min(counts.values(), default=0),
    )


def edited(model: Classifier, passes: Passes, method: FAMR) -> AbstractContextManager[None]:
    """Gradients for the weights that may change, and for no others."""
    head = bool(method.edit_head)
    if method.settled_share >= 1 and head:
        return nullcontext()
    first = next(iter(passes.forget(None))).images[:1]
    names = late_parameters(model.module, lambda: model.module(first), method.settled_share, head)
    if method.forgets_style:
        rank = call_order(model.module, lambda: model.module(first))
        inside = [place for name, place in rank.items() if name.startswith(f"{method.style_layer}.")]
        if inside and all(rank[name] > max(inside) for name in names):
            raise RequestError(
                "The style layer lies before every layer that may change, so its style cannot change.",
                where=f"{method.style_layer}, edited share {method.settled_share:g}",
                fix="Use a larger edited share, or a later layer.",
            )
    return train_only(model.module, names)


def passes_of(
    model: Classifier,
    splits: Splits | None,
    loader: Iterable[LabelledImages] | None,
    style_target: Images | Iterable[LabelledImages] | None,
    method: FAMR,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Passes:
    """How the run goes over its images; checks that the request and the method fit together."""

    a_step = None if splits is None else method.images_a_step(len(splits.forget))

    def passes_over(images: Images | Iterable[LabelledImages] | None, shared: Ranks = ranks) -> Batches | None:
        if images is None:
            return None
        if isinstance(images, Images):
            return image_batches(images, model.require_preprocessing(), gradient_batch_size(a_step), device, shared)
        return loader_batches(images, device, shared)

    if loader is not None and splits is None:
        forget = loader_batches(loader, device, ranks)
        labels = torch.cat([batch.labels for batch in forget(None)])
        return Passes(
            forget,
            sum(1 for _ in forget(None)),
            forget,
            None,
            passes_over(style_target, ALONE),
            None,
            tuple(sorted(set(labels.tolist()))),
            False,
        )
    if splits is None or loader is not None:
        raise RequestError("Give either `splits` or `forget=`, and not both.", where="famr.forget")
    if splits.request.kind == "style" and not method.forgets_style:
        raise RequestError(
            "A style request needs β > 0 and a style layer.",
            where=splits.request.describe(),
            fix="FAMR(beta=None, style_layer=…), or --style-layer on the command line.",
        )
    neutral = splits.retain if style_target is None else style_target
    shown = shown_of(splits.test)
    return Passes(
        steps=image_batches(
            splits.forget, model.require_preprocessing(), method.images_a_step(len(splits.forget)), device, ranks
        ),
        steps_per_epoch=-(-len(splits.forget) // method.batch_size),
        forget=evaluation_batches(splits.forget, model.require_preprocessing(), device, ranks, a_step),
        held_out=None
        if shown is None
        else evaluation_batches(shown, model.require_preprocessing(), device, ranks, a_step),
        neutral=passes_over(neutral, ALONE),  # its sum of Gram matrices is not worth dividing
        kept=passes_over(probe_images(splits.retain)),
        forgotten=splits.forgotten_classes(),
        forgets_classes=splits.forgets_classes(),
    )


def shown_of(held_out: Images | None) -> Images | None:
    """Those of the held-out images that a run sees; the same in every run."""
    return None if held_out is None else held_out.take(order(len(held_out), 0)[:SHOWN].sort().values)


def shape_of_one(model: Classifier, passes: Passes) -> tuple[int, ...]:
    """(channels, height, width) of an image as the network takes it; nothing is decoded for it."""
    if model.preprocessing is not None:
        return (model.preprocessing.channels, *model.preprocessing.crop)
    return tuple(next(iter(passes.forget(None))).images.shape[1:])


TRIED = 4
"""Forget images on which a front is tried."""


def front_of(loss: ForgetLoss, forget: Images, anchors: object) -> Front | None:
    """The part of the network that stays as it is, if it can be left behind and what it makes of the images kept.

    `anchors` is where held answers come from: a loader's batches are already somebody else's to keep.
    """
    method = loss.method
    if method.settled_share >= 1 or method.forgets_style or loss.ranks.size > 1:
        return None
    images, held = len(forget), 0
    if method.function_strength:
        if not isinstance(anchors, Images):
            return None
        held = min(len(anchors), (method.function_images or 0) * len(anchors.class_counts()))
    some = next(iter(image_batches(forget, loss.model.require_preprocessing(), TRIED, loss.device)(None))).images
    front = frozen_front(loss.model.module, loss.logits, lambda front: replace(loss, front=front).logits, some)
    if front is None or not fits(front, images + held):
        return None
    front.a_step = loss.a_step
    return front


def behind(
    front: Front | None, loss: ForgetLoss, passes: Passes, forget: Images, watched: Images | None
) -> tuple[ForgetLoss, Passes]:
    """The same loss and the same passes, beginning behind a front where there is one.

    `watched` are held-out images that are asked about after every epoch; they too, where there is room for them.
    """
    if front is None:
        return loss, passes
    prepared, place = loss.model.require_preprocessing(), loss.device
    size, beyond = evaluation_batch_size(place, loss.a_step), None
    if watched is not None and fits(front, len(watched)):
        beyond = front.passes(watched, prepared, size, place, for_steps=False)
    return replace(loss, front=front), replace(
        passes,
        steps=front.passes(forget, prepared, loss.method.images_a_step(len(forget)), place),
        forget=front.passes(forget, prepared, size, place),
        held_out_beyond=beyond,
    )
