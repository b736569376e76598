"How good an embedding is: ranks, clusters, probes and verification"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'retrieval': ['evaluate', 'paired'],
    'relevance': ['evaluate_relevance', 'shared_labels', 'shared_levels'],
    'clustering': [
        'cluster', 'clustering_scores', 'few_shot', 'linear_probe', 'nearest_class_mean',
        'spectral_variance',
    ],
    'verification': ['verify', 'verify_folds', 'verify_search'],
})
