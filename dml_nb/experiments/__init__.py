"Recipes of trainings, their runs and sweeps, and the statistics that compare them"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'recipe': ['Recipe'],
    'trial': ['run'],
    'statistics': ['crossed_interval', 'interval', 'paired_interval', 'share_interval', 'welch'],
    'sweeps': ['choose', 'run_many', 'sweep'],
    'benchmark': ['bench'],
})
