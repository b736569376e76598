"Labelled pictures from any source, how they are split, and batches of classes × images"
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={
    'decoding': ['read_image'],
    'images': ['ImageSet'],
    'glyphs': ['draw_glyphs'],
    'sources': ['load_data'],
    'splits': ['split_by_class', 'split_by_image'],
    'transforms': ['crop_and_flip', 'jitter_images', 'shift_images', 'turn_classes'],
    'samplers': ['ClassBatchSampler'],
    'noise': ['asymmetric_noise', 'noisy_images', 'symmetric_noise'],
})
