"""The user-facing API: connect to a cluster, load data, start a script beside it, watch the run, stop it.

Each name is imported from its defining module on first use, so a command loads only the modules that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite_tf_magic.client.sql import QueryProgress as QueryProgress
    from ignite_tf_magic.client.sql_result import QueryResult as QueryResult
    from ignite_tf_magic.data.additions import EndedLoad as EndedLoad
    from ignite_tf_magic.data.load_options import LoadOutcome as LoadOutcome
    from ignite_tf_magic.data.load_options import LoadProgress as LoadProgress
    from ignite_tf_magic.data.sources import is_source as is_source
    from ignite_tf_magic.data.text_files import TextFormat as TextFormat
    from ignite_tf_magic.doctor.diagnosis import Check as Check
    from ignite_tf_magic.doctor.diagnosis import Diagnosis as Diagnosis
    from ignite_tf_magic.doctor.diagnosis import Health as Health
    from ignite_tf_magic.embedded import ClusterStopped as ClusterStopped
    from ignite_tf_magic.embedded import EmbeddedCluster as EmbeddedCluster
    from ignite_tf_magic.embedded import EmbeddedNode as EmbeddedNode
    from ignite_tf_magic.embedded import EmbeddedOptions as EmbeddedOptions
    from ignite_tf_magic.profiling.column_numbers import ColumnProfile as ColumnProfile
    from ignite_tf_magic.profiling.column_numbers import Histogram as Histogram
    from ignite_tf_magic.profiling.columns import CacheColumns as CacheColumns
    from ignite_tf_magic.profiling.columns import ColumnInfo as ColumnInfo
    from ignite_tf_magic.profiling.profile import SAMPLED_ROWS as SAMPLED_ROWS
    from ignite_tf_magic.profiling.profile import CacheProfile as CacheProfile
    from ignite_tf_magic.profiling.sample import CacheSample as CacheSample
    from ignite_tf_magic.profiling.seen_fields import RowKind as RowKind
    from ignite_tf_magic.runs.handles.failure import Failure as Failure
    from ignite_tf_magic.runs.handles.run import Run as Run
    from ignite_tf_magic.runs.handles.run import StopKind as StopKind
    from ignite_tf_magic.runs.handles.run import StopOutcome as StopOutcome
    from ignite_tf_magic.runs.hosts.placement import PlacementRow as PlacementRow
    from ignite_tf_magic.runs.logs.output import OutputChunk as OutputChunk
    from ignite_tf_magic.runs.record import RunInfo as RunInfo
    from ignite_tf_magic.runs.record import RunRecord as RunRecord
    from ignite_tf_magic.runs.record import WorkerRecord as WorkerRecord
    from ignite_tf_magic.runs.roles import Strategy as Strategy
    from ignite_tf_magic.runs.states import RunState as RunState
    from ignite_tf_magic.runs.supervision.manager import begin_to_let_go_of_runs as begin_to_let_go_of_runs
    from ignite_tf_magic.runs.supervision.planning import Plan as Plan
    from ignite_tf_magic.serialization.function_pickle import pickle_function as pickle_function
    from ignite_tf_magic.session.cluster_names import cache_names as cache_names
    from ignite_tf_magic.session.cluster_names import columns_of_tables as columns_of_tables
    from ignite_tf_magic.session.cluster_names import paths_in_directory as paths_in_directory
    from ignite_tf_magic.session.examination import diagnose as diagnose
    from ignite_tf_magic.session.facade import CacheInfo as CacheInfo
    from ignite_tf_magic.session.facade import Session as Session
    from ignite_tf_magic.session.facade import attach_run as attach_run
    from ignite_tf_magic.session.facade import load as load
    from ignite_tf_magic.session.facade import open_session as open_session
    from ignite_tf_magic.session.installation import InstalledPart as InstalledPart
    from ignite_tf_magic.session.installation import installed as installed
    from ignite_tf_magic.session.known_runs import get_run as get_run
    from ignite_tf_magic.session.known_runs import stop_run as stop_run
    from ignite_tf_magic.session.listing import kept_ready as kept_ready
    from ignite_tf_magic.session.listing import left_runs as left_runs
    from ignite_tf_magic.session.listing import list_runs as list_runs
    from ignite_tf_magic.session.listing import only_run as only_run
    from ignite_tf_magic.session.local_nodes import local_down as local_down
    from ignite_tf_magic.session.local_nodes import local_status as local_status
    from ignite_tf_magic.session.local_nodes import local_up as local_up
    from ignite_tf_magic.session.local_nodes import start_embedded as start_embedded
    from ignite_tf_magic.session.overviews import Overview as Overview
    from ignite_tf_magic.session.overviews import overview as overview
    from ignite_tf_magic.session.panel_feed import PanelFeed as PanelFeed
    from ignite_tf_magic.session.panel_feed import PanelSeen as PanelSeen
    from ignite_tf_magic.session.predicting import predict as predict
    from ignite_tf_magic.session.prediction_steps import PredictionOutcome as PredictionOutcome
    from ignite_tf_magic.session.pruning import Pruned as Pruned
    from ignite_tf_magic.session.run_index import Listed as Listed
    from ignite_tf_magic.session.run_index import damaged_words as damaged_words
    from ignite_tf_magic.session.run_index import is_live as is_live
    from ignite_tf_magic.session.run_plans import COMMUNICATION as COMMUNICATION
    from ignite_tf_magic.session.run_plans import RunRequest as RunRequest
    from ignite_tf_magic.session.run_scripts import read_source as read_source
    from ignite_tf_magic.session.training_run import MetricsTail as MetricsTail
    from ignite_tf_magic.session.training_run import TrainingRun as TrainingRun
    from ignite_tf_magic.settings.options import OnRebalance as OnRebalance
    from ignite_tf_magic.training.records import TrainingRecord as TrainingRecord
    from ignite_tf_magic.training.records import mean_data_wait as mean_data_wait

    Planned, Record = Plan, TrainingRecord

_NAMES_IN = {
    "client.sql": "QueryProgress",
    "client.sql_result": "QueryResult",
    "settings.options": "OnRebalance",
    "data.additions": "EndedLoad",
    "data.load_options": "LoadOutcome LoadProgress",
    "data.sources": "is_source",
    "data.text_files": "TextFormat",
    "doctor.diagnosis": "Check Diagnosis Health",
    "embedded": "ClusterStopped EmbeddedCluster EmbeddedNode EmbeddedOptions",
    "runs.handles.failure": "Failure",
    "runs.handles.run": "Run StopKind StopOutcome",
    "runs.hosts.placement": "PlacementRow",
    "runs.logs.output": "OutputChunk",
    "runs.record": "RunInfo RunRecord WorkerRecord",
    "runs.roles": "Strategy",
    "runs.states": "RunState",
    "runs.supervision.manager": "begin_to_let_go_of_runs",
    "runs.supervision.planning": "Plan",
    "serialization.function_pickle": "pickle_function",
    "session.facade": "CacheInfo Session attach_run load open_session",
    "profiling.columns": "CacheColumns ColumnInfo",
    "profiling.profile": "CacheProfile SAMPLED_ROWS",
    "profiling.sample": "CacheSample",
    "profiling.column_numbers": "ColumnProfile Histogram",
    "session.examination": "diagnose",
    "session.cluster_names": "cache_names columns_of_tables paths_in_directory",
    "session.installation": "InstalledPart installed",
    "session.known_runs": "get_run stop_run",
    "session.listing": "kept_ready left_runs list_runs only_run",
    "session.local_nodes": "local_down local_status local_up start_embedded",
    "session.panel_feed": "PanelFeed PanelSeen",
    "session.predicting": "predict",
    "session.prediction_steps": "PredictionOutcome",
    "session.pruning": "Pruned",
    "session.run_index": "Listed damaged_words is_live",
    "session.run_plans": "COMMUNICATION RunRequest",
    "session.run_scripts": "read_source",
    "session.overviews": "Overview overview",
    "profiling.seen_fields": "RowKind",
    "session.training_run": "MetricsTail TrainingRun",
    "training.records": "TrainingRecord mean_data_wait",
}
_HOME_OF_NAME = {name: module for module, names in _NAMES_IN.items() for name in names.split()}
# Former names, kept for programs that still use them.
_FORMER_NAMES = {"Planned": "Plan", "Record": "TrainingRecord"}
__all__ = sorted((*_HOME_OF_NAME, *_FORMER_NAMES))


def __getattr__(name: str) -> Any:
    name = _FORMER_NAMES.get(name, name)
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ignite_tf_magic.{_HOME_OF_NAME[name]}"), name)
