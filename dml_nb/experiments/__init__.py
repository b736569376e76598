"Recipes of trainings, their runs and sweeps, and the statistics that compare them"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'trial': [
        'Recipe', 'choose', 'interval', 'paired_interval', 'run', 'run_many', 'sweep', 'welch',
    ],
    'benchmark': ['bench'],
})
