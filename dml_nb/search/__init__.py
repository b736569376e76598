"Train on your own pictures, index them, find similar ones and look at the mistakes"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'index': ['EmbeddingIndex'],
    'pictures': ['load_pictures'],
    'refine': ['CompactIndex', 'Whitening', 'expand', 'mean_of_views', 'rerank'],
    'everyday': ['train_embedder'],
    'folders': ['add_pictures', 'index_folder', 'remove_pictures', 'search_folder'],
    'browser': ['browse'],
    'export': ['export_onnx', 'export_parquet'],
})
