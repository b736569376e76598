"Made-up files in the layouts in which data sets are published; pictures are noise."
import numpy as np
from PIL import Image
from scipy.io import savemat


def noise(path, seed):
    "A picture, the same for the same seed"
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def made_up_cars(folder):
    "Cars196 in one list: two pictures of each class, because none may be without"
    rows = [(number, f'car_ims/{number:03}_{i}.jpg') for number in range(1, 197) for i in range(2)]
    names = np.array([f'Car {number}' for number in range(1, 197)], dtype=object)
    kinds = [('class', object), ('relative_im_path', object)]
    savemat(folder/'cars_annos.mat',
            {'annotations': np.array(rows, dtype=kinds), 'class_names': names})
    for seed, (_, name) in enumerate(rows):
        noise(folder/name, seed)


def made_up_products(folder):
    "Stanford Online Products: two classes train and two are searched, four pictures each"
    items = list(enumerate(np.repeat([7, 8, 30, 31], 4), 1))
    for part, own in (('train', items[:8]), ('test', items[8:])):
        lines = [f'{i} {number} 1 sofa_final/{i}.JPG' for i, number in own]
        head = 'image_id class_id super_class_id path'
        (folder/f'Ebay_{part}.txt').write_text('\n'.join([head, *lines]))
    for i, _ in items:
        noise(folder/'sofa_final'/f'{i}.JPG', i)
