"Networks that embed, a fastai Learner for them, and what keeps a long training safe"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'embedding': ['Embedder', 'create_embedder'],
    'features': ['Features', 'load_embedder', 'save_embedder'],
    'learner': ['metric_dataloaders', 'metric_learner'],
    'callbacks': [
        'AdaptedTripletCallback', 'CITCallback', 'DROCallback', 'DiscrepancyCallback',
        'LossCallback', 'MultiSimilarityCallback', 'PairStatistics',
    ],
    'memory': ['CrossBatchMemory', 'GradientCache', 'Temperature'],
    'distribution': ['distributed'],
    'networks': ['small_convnet'],
    'recovery': ['Checkpoints'],
})
