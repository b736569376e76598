"Train on your own pictures, index them, find similar ones and look at the mistakes"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'index': ['EmbeddingIndex'],
    'everyday': ['index_folder', 'load_pictures', 'search_folder', 'train_embedder'],
    'browser': ['browse'],
})
