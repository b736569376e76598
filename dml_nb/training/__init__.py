"Networks that embed, a fastai Learner for them, and what keeps a long training safe"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'embedding': ['Embedder', 'create_embedder'],
    'features': ['Features', 'load_embedder', 'save_embedder'],
    'batches': ['metric_dataloaders'],
    'learner': ['metric_learner'],
    'callbacks': ['LossCallback', 'PairStatistics'],
    'methods': [
        'AdaptedTripletCallback', 'CITCallback', 'DROCallback', 'DiscrepancyCallback',
        'MultiSimilarityCallback',
    ],
    'memory': ['CrossBatchMemory', 'GradientCache', 'Temperature'],
    'distribution': ['distributed'],
    'networks': ['small_convnet'],
    'recovery': ['Checkpoints'],
})
