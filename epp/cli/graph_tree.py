"""Draws the graph of a configuration as a tree for terminals."""

from collections.abc import Iterable

from rich.markup import escape
from rich.tree import Tree

from epp.config.describe import FeedGraph, Graph, PluginUse, ProfileGraph
from epp.framework.plugin import Stage, all_roles

_BEFORE_SCHEDULING = frozenset(cls.role.title.lower() for cls in all_roles() if cls.role.stage < Stage.PROFILE_CHOICE)


def graph_tree(graph: Graph) -> Tree:
    """Return the tree, in the order in which a request meets what is in it."""
    tree = Tree("a request", guide_style="dim")
    tree.add(f"parsers: {_named_all(graph.parsers)}")
    for name, plugins in graph.hooks.items():
        if name in _BEFORE_SCHEDULING:
            tree.add(f"{name}: {_named_all(plugins)}")
    for producer in graph.producers:
        tree.add(f"producer {_named(producer)}{_data('writes', producer.writes)}")
    aggregated = "" if graph.aggregator == graph.profile_picker else f", {_named(graph.aggregator)} adds up"
    picked = tree.add(f"profile picker {_named(graph.profile_picker)}{aggregated}")
    for profile in graph.profiles:
        _add_profile(picked, profile)
    for name, plugins in graph.hooks.items():
        if name not in _BEFORE_SCHEDULING:
            tree.add(f"{name}: {', '.join(escape(plugin.name) for plugin in plugins)}")
    knowledge = tree.add("what is known of endpoints")
    for feed in graph.feeds:
        _add_feed(knowledge, feed)
    for tagger in graph.taggers:
        knowledge.add(f"tagger {_named(tagger)}{_data('writes', tagger.writes)}")
    if graph.discovery is not None:
        knowledge.add(f"discovery {_named(graph.discovery)}")
    return tree


def _add_profile(tree: Tree, profile: ProfileGraph) -> None:
    branch = tree.add(f"profile [bold]{escape(profile.name)}[/]")
    for kept in profile.filters:
        notes = (["or else all"] if kept.fallback_on_empty else []) + _on_error(kept.on_error, "Fail")
        branch.add(f"filter {_named(kept.plugin)}{_aside(notes)}{_data('reads', kept.plugin.reads)}")
    for scorer in profile.scorers:
        notes = [f"{scorer.share:.0%}", scorer.category, *_on_error(scorer.on_error, "Skip")]
        branch.add(
            f"scorer {_named(scorer.plugin)}, weight {scorer.weight:g}{_aside(notes)}"
            f"{_data('reads', scorer.plugin.reads)}"
        )
    branch.add(f"picker {_named(profile.picker)}")


def _add_feed(tree: Tree, feed: FeedGraph) -> None:
    every = "" if feed.interval_seconds is None else f" every {feed.interval_seconds:g} s"
    source = tree.add(f"source {_named(feed.source)}{every}")
    for extractor in feed.extractors:
        source.add(f"extractor {_named(extractor)}{_data('writes', extractor.writes)}")


def _named_all(plugins: Iterable[PluginUse]) -> str:
    """Name them, and say why they are there once for all that share a reason."""
    by_reason: dict[str, list[str]] = {}
    for plugin in plugins:
        by_reason.setdefault(plugin.implied, []).append(_named(plugin, why=False))
    return "; ".join(f"{', '.join(names)}{_added(reason)}" for reason, names in by_reason.items())


def _named(plugin: PluginUse, *, why: bool = True) -> str:
    kind = _aside([] if plugin.name == plugin.type else [plugin.type])
    return f"[cyan]{escape(plugin.name)}[/]{kind}{_added(plugin.implied) if why else ''}"


def _added(reason: str) -> str:
    return _aside([f"added: {reason}"] if reason else [])


def _aside(notes: list[str]) -> str:
    return f" [dim]({escape(', '.join(notes))})[/]" if notes else ""


def _on_error(found: str, usual: str) -> list[str]:
    return [] if found == usual else [f"onError {found}"]


def _data(verb: str, names: tuple[str, ...]) -> str:
    return f" [dim]{verb} {escape(', '.join(names))}[/]" if names else ""
