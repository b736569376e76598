"Labelled pictures from any source, how they are split, and batches of classes × images"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'sources': ['ImageSet', 'load_data', 'read_image', 'split_by_class', 'split_by_image'],
    'samplers': ['ClassBatchSampler'],
    'noise': ['asymmetric_noise', 'noisy_images', 'symmetric_noise'],
})
